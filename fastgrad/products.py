"""Products of float32 matrices on a CPU, computed tile by tile in a core's registers.

The matrices of a local step are small: libraries reach a third to a half of what a core can multiply. Here a
tile of the product, a few rows by two vectors, stays in registers while one pass over the depth adds to it.
Processors without the vectors for this leave products to torch (`vectors.HAS_VECTORS`).

Every entry is the sum over the depth in its order, each term added by one fused operation. So its last bits
depend on a row of the left matrix and a column of the right one, and on nothing that lies beside them.
torch's libraries promise less: there, a row may depend on how many rows there are.
"""

# Holds code of vectors.py efd52ae30c96, tiles.py cd26fac18d51.

from functools import partial

import numpy as np
import torch
from numba.types import bool_, float32, int64

from fastgrad.kernels import compiled
from fastgrad.layer import Call, flat
from fastgrad.tiles import SUMS, VECTORS, WIDTH, tile, transpose
from fastgrad.vectors import HAS_VECTORS, LANES, Floats, copy

DEPTH = 256
"""How far one pass goes, so that WIDTH columns of the right matrix stay in the core's first cache."""
SHALLOW = 48
"""Below this depth, reading costs less than writing, so tiles follow each other along the product's rows."""

_F = float32[::1]


@compiled(_F, int64, int64, int64, _F)
def pack_columns(right: Floats, columns: int, depth: int, right_down: int, panels: Floats) -> None:
    """Lay a matrix that is stored by columns out in panels, as `multiply_by_panels` reads them.

    Args:
        right: (columns, depth), every ``right_down`` entries a new column.
        columns, depth, right_down: its sizes.
        panels: of `panel_size` entries: for each DEPTH rows, for each WIDTH columns, DEPTH lines of WIDTH.
    """
    wide = (columns + WIDTH - 1) // WIDTH * WIDTH
    for begin in range(0, depth, DEPTH):
        for j in range(0, columns, LANES):
            to = begin * wide + j // WIDTH * WIDTH * DEPTH + j % WIDTH
            for k in range(begin, min(begin + DEPTH, depth), LANES):
                transpose(
                    right, j * right_down + k, right_down, panels, to + (k - begin) * WIDTH,
                    min(LANES, columns - j), min(LANES, depth - k),
                )  # fmt: skip


@compiled(_F, int64, int64, int64, _F)
def pack_rows(right: Floats, columns: int, depth: int, right_down: int, panels: Floats) -> None:
    """Lay a matrix that is stored by rows out in panels, as `multiply_by_panels` reads them.

    `right`: (depth, columns), every ``right_down`` entries a new row. `panels`: as in `pack_columns`.
    """
    wide = (columns + WIDTH - 1) // WIDTH * WIDTH
    for k in range(depth):
        for j in range(0, columns, WIDTH):
            begin, to = k * right_down + j, k // DEPTH * DEPTH * wide + j * DEPTH + k % DEPTH * WIDTH
            copy(right, begin, panels, to, min(WIDTH, columns - j))


def panel_size(columns: int, depth: int) -> int:
    """Return how many floats the panels of a matrix (depth, columns) take."""
    return -(-columns // WIDTH) * WIDTH * -(-depth // DEPTH) * DEPTH


@compiled(_F, int64, int64, _F, int64, int64, int64, _F, int64, int64, int64, int64, bool_)
def _multiply(
    left: Floats, down: int, along: int, right: Floats, right_down: int, panel_step: int, pass_step: int,
    out: Floats, out_down: int, rows: int, columns: int, depth: int, adds: bool,
) -> None:  # fmt: skip
    """Compute what `multiply` does, with steps from one panel and one pass over ``right`` to the next."""
    most = SUMS if columns <= LANES else SUMS // VECTORS
    tiles, panels = (rows + most - 1) // most, (columns + WIDTH - 1) // WIDTH
    inner = panels if depth < SHALLOW else 1
    for begin in range(0, depth, DEPTH):
        for first in range(0, panels, inner):
            i = 0
            for number in range(tiles):
                height = (rows - i) // (tiles - number)
                for panel in range(first, first + inner):
                    tile(
                        left, i * down + begin * along, down, along,
                        right, begin // DEPTH * pass_step + panel * panel_step, right_down,
                        out, i * out_down + panel * WIDTH, out_down,
                        height, min(WIDTH, columns - panel * WIDTH), min(DEPTH, depth - begin),
                        adds or begin > 0,
                    )  # fmt: skip
                i += height


@compiled(_F, int64, int64, _F, int64, _F, int64, int64, int64, int64, bool_)
def multiply(
    left: Floats, down: int, along: int, right: Floats, right_down: int,
    out: Floats, out_down: int, rows: int, columns: int, depth: int, adds: bool,
) -> None:  # fmt: skip
    """Write the product of two matrices to ``out``, or add it if ``adds``.

    Args:
        left: (rows, depth); ``down`` entries from row to row, ``along`` from column to column.
        right: (depth, columns); ``right_down`` entries from row to row.
        out: (rows, columns); ``out_down`` entries from row to row.
        rows, columns, depth: 1 or more.
        adds: whether to add to out.
    """
    steps = (right_down, WIDTH, DEPTH * right_down)
    _multiply(left, down, along, right, *steps, out, out_down, rows, columns, depth, adds)


@compiled(_F, int64, int64, _F, _F, int64, int64, int64, int64, bool_)
def multiply_by_panels(
    left: Floats, down: int, along: int, panels: Floats,
    out: Floats, out_down: int, rows: int, columns: int, depth: int, adds: bool,
) -> None:  # fmt: skip
    """Do what `multiply` does with a right matrix that `pack_rows` or `pack_columns` has laid out."""
    steps = (WIDTH, WIDTH * DEPTH, (columns + WIDTH - 1) // WIDTH * WIDTH * DEPTH)
    _multiply(left, down, along, panels, *steps, out, out_down, rows, columns, depth, adds)


@compiled(_F, int64, int64, _F, int64, _F, _F, int64, int64, int64, int64)
def multiply_by_columns(
    left: Floats, down: int, along: int, right: Floats, right_down: int, panels: Floats,
    out: Floats, out_down: int, rows: int, columns: int, depth: int,
) -> None:  # fmt: skip
    """Write the product to ``out`` as `multiply` does; ``right`` is stored as `pack_columns` takes it."""
    pack_columns(right, columns, depth, right_down, panels)
    multiply_by_panels(left, down, along, panels, out, out_down, rows, columns, depth, False)


@compiled(_F, int64, int64, _F, _F, int64, int64, int64, int64, bool_, bool_)
def multiply_in_turn(
    left: Floats, down: int, along: int, panels: Floats,
    out: Floats, out_down: int, rows: int, columns: int, depth: int, adds: bool, from_last: bool,
) -> None:  # fmt: skip
    """Do what `multiply_by_panels` does, for few rows and panels that are multiplied by again and again.

    `from_last`: whether to begin at the last columns. Who begins at either end in turn finds the panels that
    were read last before in the cache, where not all of them fit.
    """
    # Loops of its own: where `_multiply` chose the order, products of convolutions took a tenth longer.
    most, count = SUMS // VECTORS, (columns + WIDTH - 1) // WIDTH
    tiles = (rows + most - 1) // most
    for number in range(count):
        panel = count - 1 - number if from_last else number
        for begin in range(0, depth, DEPTH):
            i = 0
            for over in range(tiles):
                height = (rows - i) // (tiles - over)
                tile(
                    left, i * down + begin * along, down, along,
                    panels, begin * count * WIDTH + panel * WIDTH * DEPTH, WIDTH,
                    out, i * out_down + panel * WIDTH, out_down,
                    height, min(WIDTH, columns - panel * WIDTH), min(DEPTH, depth - begin),
                    adds or begin > 0,
                )  # fmt: skip
                i += height


@compiled(int64, _F, _F, _F, int64, int64, int64)
def multiply_transposed_each(
    count: int, left: Floats, right: Floats, out: Floats, rows: int, columns: int, depth: int
) -> None:
    """Write the products L_i^T R_i of pairs of matrices to ``out``.

    `left`: (count, depth, rows). `right`: (count, depth, columns). `out`: (count, rows, columns).
    """
    for n in range(count):
        multiply(
            left[n * depth * rows :], 1, rows, right[n * depth * columns :], columns,
            out[n * rows * columns :], columns, rows, columns, depth, False,
        )  # fmt: skip


def product(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, room: Floats | None = None) -> Call:
    """Return a call that writes the product of two matrices into ``out``.

    Args:
        left: (m, k), float32.
        right: (k, n), float32, stored by rows or by columns.
        out: (m, n), float32, stored by rows.
        room: `panel_size(n, k)` entries or more, which calls may share: a right matrix that is stored by
            columns is laid out there. None for a place of its own.

    Raises ValueError: shapes that do not fit each other.
    """
    if not HAS_VECTORS or 0 in (*left.shape, *right.shape):
        return partial(torch.mm, left, right, out=out)
    (rows, depth), columns = left.shape, right.shape[1]
    if right.shape[0] != depth or out.shape != (rows, columns):
        raise ValueError(f"no product of {left.shape} and {right.shape} has the shape {out.shape}")
    (down, along), (right_down, right_along) = left.stride(), right.stride()
    entries, last = _entries(right), (flat(out), columns, rows, columns, depth)
    if right_along == 1:
        return partial(multiply, _entries(left), down, along, entries, right_down, *last, False)
    size = panel_size(columns, depth)
    panels = np.empty(size, np.float32) if room is None else room[:size]
    if len(panels) < size:
        raise ValueError(f"panels of {size} entries do not fit into a room of {len(panels)}")
    return partial(multiply_by_columns, _entries(left), down, along, entries, right_along, panels, *last)


def products_of_records(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> Call:
    """Return a call that writes the product of each record's two matrices, L_i^T R_i, into ``out``.

    Args:
        left: (records, k, m), float32.
        right: (records, k, n), float32.
        out: (records, m, n), float32.

    Raises ValueError: shapes that do not fit each other.
    """
    if not HAS_VECTORS or 0 in (*left.shape, *right.shape):
        return partial(torch.bmm, left.transpose(1, 2), right, out=out)
    count, depth, rows = left.shape
    sizes = rows, right.shape[2], depth
    if right.shape[:2] != (count, depth) or out.shape != (count, *sizes[:2]):
        raise ValueError(f"no products of {left.shape} and {right.shape} have the shape {out.shape}")
    return partial(multiply_transposed_each, count, flat(left), flat(right), flat(out), *sizes)


def _entries(matrix: torch.Tensor) -> Floats:
    """Return all entries of a matrix that is stored by rows or by columns without gaps, as a flat array."""
    stored = matrix if matrix.is_contiguous() else matrix.t()
    return flat(stored)
