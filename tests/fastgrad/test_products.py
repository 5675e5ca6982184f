"""Tests of matrix products on a CPU, tile by tile in registers and by torch, against float64."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from fastgrad import products, tiles, vectors
from fastgrad.layer import flat
from fastgrad.lowering import lower
from fastgrad.modules import cross_entropy
from fastgrad.products import (
    multiply,
    multiply_by_panels,
    multiply_in_turn,
    pack_columns,
    pack_rows,
    panel_size,
)
from fastgrad.program import Program
from fastgrad.tiles import SUMS, VECTORS, WIDTH
from fastgrad.vectors import HAS_VECTORS, LANES
from gdpfed.learning.models import flatten

needs_vectors = pytest.mark.skipif(not HAS_VECTORS, reason="a processor without AVX2")
# Below and above the sizes of a vector, a tile, a panel and a pass.
SIZES = [
    (1, 1, 1),
    (SUMS + 1, LANES - 1, 3),
    (SUMS // VECTORS + 1, LANES + 1, products.SHALLOW - 1),
    (10, 3 * WIDTH, products.SHALLOW),
    (5, WIDTH + 3, products.DEPTH),
    (33, 2 * WIDTH + LANES, products.DEPTH + 17),
    (2, 1, 2 * products.DEPTH + 1),
]


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def product_of(left, right, rows=slice(None), columns=slice(None)):
    """The product of these rows and columns, kept between NaN that it must not touch."""
    left, right = left[rows], right[:, columns]
    kept = torch.full((len(left) + 2, right.shape[1]), torch.nan)
    products.product(stored_alone(left), stored_alone(right), kept[1:-1])()
    assert kept[0].isnan().all()
    assert kept[-1].isnan().all()
    return kept[1:-1]


def stored_alone(matrix):
    """A copy that is stored by columns if the matrix is."""
    by_columns = matrix.stride(0) == 1 and matrix.stride(1) != 1
    return matrix.t().contiguous().t() if by_columns else matrix.contiguous()


def assert_is_product(found, left, right):
    expected = left.double() @ right.double()
    # A sum of `depth` terms in float32, and the terms' own sizes.
    most = left.double().abs() @ right.double().abs()
    assert ((found - expected).abs() <= left.shape[1] * 2**-23 * most).all()


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("flip_left", [False, True])
@pytest.mark.parametrize("flip_right", [False, True])
def test_products_are_right_for_matrices_stored_by_rows_and_by_columns(size, flip_left, flip_right):
    rows, columns, depth = size
    left = drawn(depth, rows).t() if flip_left else drawn(rows, depth)
    right = drawn(columns, depth, seed=1).t() if flip_right else drawn(depth, columns, seed=1)
    assert_is_product(product_of(left, right), left, right)


@needs_vectors
@pytest.mark.parametrize("size", SIZES[1:])
@pytest.mark.parametrize("by_columns", [False, True])
def test_an_entry_depends_on_no_other_row_or_column_in_its_last_bits(size, by_columns):
    rows, columns, depth = size
    left = drawn(rows, depth)
    right = drawn(columns, depth, seed=1).t() if by_columns else drawn(depth, columns, seed=1)
    whole = product_of(left, right)
    for row in (0, rows // 2, rows - 1):
        assert torch.equal(product_of(left, right, rows=slice(row, row + 1)), whole[row : row + 1])
    for column in (0, columns // 2, columns - 1):
        some = slice(column, column + 1)
        assert torch.equal(product_of(left, right, columns=some), whole[:, some])


@needs_vectors
def test_what_is_not_a_number_stays_in_its_row_and_column():
    left, right = drawn(20, 40), drawn(40, 50, seed=1)
    left[3, 5], right[7, 44] = torch.inf, torch.nan
    odd = ~product_of(left, right).isfinite()
    expected = torch.zeros(20, 50, dtype=torch.bool)
    expected[3], expected[:, 44] = True, True
    assert torch.equal(odd, expected)


@pytest.mark.parametrize("size", SIZES)
def test_products_add_to_what_is_there_and_take_a_matrix_in_panels(size):
    rows, columns, depth = size
    left, right, begun = drawn(rows, depth), drawn(depth, columns, seed=1), drawn(rows, columns, seed=2)
    ends = []
    for pack in (None, pack_rows, pack_columns):
        given = flat(right if pack is not pack_columns else right.t().contiguous())
        sizes = columns, rows, columns, depth, True
        ends.append(begun.clone())
        if pack is None:
            multiply(flat(left), depth, 1, given, columns, flat(ends[-1]), *sizes)
            continue
        panels = np.full(panel_size(columns, depth), np.nan, np.float32)
        pack(given, columns, depth, columns if pack is pack_rows else depth, panels)
        multiply_by_panels(flat(left), depth, 1, panels, flat(ends[-1]), *sizes)
        for from_last in (False, True):
            ends.append(begun.clone())
            multiply_in_turn(flat(left), depth, 1, panels, flat(ends[-1]), *sizes, from_last)
    joined = torch.cat([left, torch.eye(rows)], dim=1), torch.cat([right, begun])
    assert_is_product(ends[0], *joined)
    assert all(torch.equal(end, ends[0]) for end in ends[1:])


@needs_vectors
def test_calls_may_share_the_room_for_a_matrix_in_panels_if_it_is_large_enough():
    left, rights = drawn(20, 40), [drawn(50, 40, seed=1).t(), drawn(7, 40, seed=2).t()]
    room, outs = np.empty(panel_size(50, 40), np.float32), [torch.empty(20, 50), torch.empty(20, 7)]
    calls = [products.product(left, right, out, room) for right, out in zip(rights, outs, strict=True)]
    for call in calls:
        call()
    for right, out in zip(rights, outs, strict=True):
        assert torch.equal(out, product_of(left, right))
    with pytest.raises(ValueError, match="do not fit into a room of"):
        products.product(left, rights[0], outs[0], room[1:])


@pytest.mark.parametrize(
    ("records", "rows", "columns", "depth"), [(3, 16, 27, 50), (1, 1, 1, 1), (0, 2, 3, 4)]
)
def test_products_of_records_are_those_of_each_record(records, rows, columns, depth):
    left, right = drawn(records, depth, rows), drawn(records, depth, columns, seed=1)
    out = torch.full((records, rows, columns), torch.nan)
    products.products_of_records(left, right, out)()
    for own, a, b in zip(out, left, right, strict=True):
        assert_is_product(own, a.t(), b)
        alone = torch.empty(1, rows, columns)
        products.products_of_records(a[None].clone(), b[None].clone(), alone)()
        assert torch.equal(alone[0], own) or not HAS_VECTORS


@pytest.mark.parametrize("shape", [(0, 3, 2), (3, 0, 2), (3, 2, 0)])
def test_products_without_rows_columns_or_depth_are_empty_or_zero(shape):
    rows, depth, columns = shape
    out = torch.full((rows, columns), torch.nan)
    products.product(torch.empty(rows, depth), torch.empty(depth, columns), out)()
    assert torch.equal(out, torch.zeros(rows, columns))


def test_shapes_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="no product of"):
        products.product(torch.empty(4, 3), torch.empty(2, 6), torch.empty(4, 6))
    with pytest.raises(ValueError, match="has the shape"):
        products.product(torch.empty(4, 3), torch.empty(3, 6), torch.empty(4, 2))
    with pytest.raises(ValueError, match="have the shape"):
        products.products_of_records(torch.empty(2, 3, 4), torch.empty(2, 3, 6), torch.empty(2, 6, 4))
    with pytest.raises(RuntimeError, match="view size"):
        products.product(torch.empty(4, 3), torch.empty(3, 6), torch.empty(6, 4).t())


# numba compiles a file's loops anew only where its own text has changed.
HELD = {
    "kernels.py": ["vectors.py"],
    "products.py": ["vectors.py", "tiles.py"],
    "embedding_lstm.py": ["vectors.py", "tiles.py", "products.py"],
}


@pytest.mark.parametrize("name", HELD)
def test_files_with_compiled_loops_name_the_code_of_others_that_they_hold(name):
    folder = Path(products.__file__).parent
    digests = {each: hashlib.sha256((folder / each).read_bytes()).hexdigest()[:12] for each in HELD[name]}
    due = "# Holds code of " + ", ".join(f"{each} {digest}" for each, digest in digests.items()) + "."
    assert due in (folder / name).read_text().splitlines()


def calls_of(*, by_record):
    """The calls of a program with convolutions, and linear layers behind them."""
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Linear(4 * 36, 20), nn.ReLU(), nn.Linear(20, 5)
    )
    parameters = torch.from_numpy(flatten(model))
    gradient = None if by_record else torch.empty_like(parameters)
    return Program(lower(model, (1, 8, 8)), cross_entropy, 3, parameters, gradient).calls


def by_torch(call):
    return call.func in (torch.mm, torch.bmm)


@needs_vectors
@pytest.mark.parametrize("by_record", [False, True])
def test_only_processors_without_tiles_leave_products_to_torch(monkeypatch, by_record):
    assert not any(by_torch(call) for call in calls_of(by_record=by_record))
    monkeypatch.setattr(products, "HAS_VECTORS", False)
    assert sum(by_torch(call) for call in calls_of(by_record=by_record)) == 3 + (3 if by_record else 5)


@needs_vectors
@pytest.mark.parametrize("adds", [False, True])
def test_a_tile_by_loops_is_that_in_registers(adds):
    left, right, start = (flat(drawn(400, seed=seed)) for seed in range(3))
    in_registers, by_loops = start.copy(), start.copy()
    multiply(left[1:], 9, 1, right[2:], 20, in_registers[3:], 25, 5, 11, 9, adds)
    tiles._tile_by_loops(left, 1, 9, 1, right, 2, 20, by_loops, 3, 25, 5, 11, 9, adds)
    np.testing.assert_allclose(in_registers, by_loops, rtol=0, atol=1e-5)


@pytest.mark.parametrize("count", [0, 1, LANES - 1, LANES, LANES + 1, 3 * LANES + 2])
def test_runs_are_copied_and_added_without_their_surroundings(count):
    source, start = flat(drawn(80)), flat(drawn(80, seed=1))
    copied, added = start.copy(), start.copy()
    vectors.copy(source, 3, copied, 5, count)
    vectors.add(source, 3, added, 5, count)
    expected = start.copy()
    expected[5 : 5 + count] = source[3 : 3 + count]
    np.testing.assert_array_equal(copied, expected)
    expected[5 : 5 + count] += start[5 : 5 + count]
    np.testing.assert_array_equal(added, expected)


# Features of a processor with AVX2 and of any x86-64: whether these count, and the floats of a vector.
FEATURES = {
    "+sse3,+ssse3,+sse4.1,+sse4.2,+popcnt,+avx,+avx2,+fma,+bmi,+bmi2,+lzcnt": (True, 8),
    "+sse3": (False, 8),
}
CHOSEN = "are_copied or stored_by_rows or add_to_what or of_each_record or lstm_layer"
PROGRAM = """
import sys, pytest
from fastgrad import vectors
assert (vectors.HAS_VECTORS, vectors.LANES) == {expected}
sys.exit(pytest.main(sys.argv[1:]))
"""


@needs_vectors
@pytest.mark.parametrize("features", FEATURES, ids=["avx2", "neither"])
def test_processors_with_other_vectors_compute_products_and_texts_as_well(features, tmp_path):
    files = [str(Path(__file__).parent / each) for each in ("test_products.py", "test_programs.py")]
    program = PROGRAM.format(expected=FEATURES[features])
    chosen = {"NUMBA_CPU_NAME": "x86-64", "NUMBA_CPU_FEATURES": features, "NUMBA_CACHE_DIR": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", program, "-n", "0", "-k", CHOSEN, *files],
        env=os.environ | chosen,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
