"""Tiles of matrix products whose sums stay in a core's registers, in vectors of float32 (`vectors.py`)."""

from typing import Any

import numba
from llvmlite import ir
from numba.extending import intrinsic
from numba.types import bool_, int64, void

from fastgrad.vectors import BIT, FLOAT, HAS_AVX512, HAS_VECTORS, LANES, LONG, VECTOR, Code, Floats

SUMS = 16 if HAS_AVX512 else 12
"""The most vectors of sums in a tile: registers are left for what is multiplied."""
VECTORS = 2
"""The most vectors in a row of a tile."""
WIDTH = LANES * VECTORS
# So many rows of the left matrix share an address; each with one of its own, registers for them run out.
_GROUP = 4


def _write_tile(
    code: Code, rows: int, vectors: int, starts: list[Any], steps: list[Any], depth: Any, adds: Any, last: Any
) -> None:
    """Write a tile of out = left times right, or of out + it, and leave the builder behind it.

    `rows`, `vectors`: its size. `starts`: addresses of left, right and out. `steps`: entries from one row
    of left to the next, from one column of it to the next, and from row to row of right and of out.
    `depth`: of the sums, at least 1. `adds`: the mask of all lanes if out is added to, else of none.
    `last`: the mask of the lanes that the last vector of a row has in the matrix.
    """
    builder, (left, right, out), (down, along, right_down, out_down) = code.builder, starts, steps
    cells = [(i, j) for i in range(rows) for j in range(vectors)]
    masks = [last if j == vectors - 1 else None for j in range(vectors)]
    places = [builder.add(builder.mul(out_down, LONG(i)), LONG(LANES * j)) for i, j in cells]
    begun = [
        code.load(out, place, adds if masks[j] is None else builder.and_(adds, last))
        for place, (_, j) in zip(places, cells, strict=True)
    ]
    offsets = [builder.mul(down, LONG(i)) for i in range(_GROUP)]
    firsts = [builder.gep(left, [builder.mul(down, LONG(i))]) for i in range(0, rows, _GROUP)]
    before, loop, behind = builder.block, *(builder.append_basic_block() for _ in range(2))
    builder.branch(loop)
    builder.position_at_end(loop)
    k, sums = builder.phi(LONG), [builder.phi(VECTOR) for _ in cells]
    columns = [builder.phi(left.type) for _ in firsts]
    right_place = builder.mul(k, right_down)
    terms = [
        code.load(right, builder.add(right_place, LONG(LANES * j)), mask) for j, mask in enumerate(masks)
    ]
    factors = [builder.load(builder.gep(columns[i // _GROUP], [offsets[i % _GROUP]])) for i in range(rows)]
    spread = [code.spread(factor, FLOAT) for factor in factors]
    added = [
        code.call("fma", VECTOR, [VECTOR] * 3, [spread[i], terms[j], total])
        for total, (i, j) in zip(sums, cells, strict=True)
    ]
    following = builder.add(k, LONG(1))
    next_columns = [builder.gep(each, [along]) for each in columns]
    phis, first = [k, *columns, *sums], [LONG(0), *firsts, *begun]
    for phi, *values in zip(phis, first, [following, *next_columns, *added], strict=True):
        for value, block in zip(values, (before, loop), strict=True):
            phi.add_incoming(value, block)
    builder.cbranch(builder.icmp_signed("<", following, depth), loop, behind)
    builder.position_at_end(behind)
    for place, vector, (_, j) in zip(places, added, cells, strict=True):
        code.store(vector, out, place, masks[j])


@intrinsic  # type: ignore[untyped-decorator]
def _tile_in_registers(
    typing: Any, left: Any, left_at: Any, down: Any, along: Any, right: Any, right_at: Any, right_down: Any,
    out: Any, out_at: Any, out_down: Any, rows: Any, columns: Any, depth: Any, adds: Any,
) -> Any:  # fmt: skip
    """Compute a tile as `_tile_by_loops` does, with its sums in registers."""

    def write(context: Any, builder: ir.IRBuilder, signature: Any, given: Any) -> Any:
        code, kinds = Code(context, builder), signature.args
        starts = [code.start(kinds[at], given[at], given[at + 1]) for at in (0, 4, 7)]
        steps = [given[2], given[3], given[6], given[9]]
        rows, columns, depth, adds = given[10:]
        vectors = builder.sdiv(builder.add(columns, LONG(LANES - 1)), LONG(LANES))
        before_last = builder.mul(builder.sub(vectors, LONG(1)), LONG(LANES))
        last = code.first_lanes(builder.sub(columns, before_last))
        every = code.spread(builder.icmp_signed("!=", adds, adds.type(0)), BIT)
        end = builder.append_basic_block()
        choice = builder.switch(builder.add(builder.mul(rows, LONG(VECTORS)), vectors), end)
        for number in range(1, VECTORS + 1):
            for height in range(1, SUMS // number + 1):
                block = builder.append_basic_block()
                choice.add_case(LONG(height * VECTORS + number), block)
                builder.position_at_end(block)
                _write_tile(code, height, number, starts, steps, depth, every, last)
                builder.branch(end)
        builder.position_at_end(end)
        return context.get_dummy_value()

    return void(left, *[int64] * 3, right, *[int64] * 2, out, *[int64] * 5, bool_), write


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _tile_by_loops(
    left: Floats, left_at: int, down: int, along: int, right: Floats, right_at: int, right_down: int,
    out: Floats, out_at: int, out_down: int, rows: int, columns: int, depth: int, adds: bool,
) -> None:  # fmt: skip
    """Compute a tile of out = left times right, or add it to out if ``adds``.

    `left_at`, `right_at`, `out_at`: the first entry in each. `down`, `along`: entries from row to row of left
    and from column to column. `right_down`, `out_down`: entries from row to row. `rows`, `columns`, `depth`:
    1 or more; no more columns than WIDTH, and no more vectors in all rows than SUMS.
    """
    for i in range(rows):
        start = out_at + i * out_down
        target = out[start : start + columns]
        if not adds:
            for j in range(columns):
                target[j] = 0
        for k in range(depth):
            factor, begin = left[left_at + i * down + k * along], right_at + k * right_down
            source = right[begin : begin + columns]
            for j in range(columns):
                target[j] += factor * source[j]


@intrinsic  # type: ignore[untyped-decorator]
def _transpose_in_registers(
    typing: Any, source: Any, at: Any, down: Any, target: Any, to: Any, rows: Any, columns: Any
) -> Any:
    """Transpose a block as `_transpose_by_loops` does, in registers."""

    def write(context: Any, builder: ir.IRBuilder, signature: Any, given: Any) -> Any:
        code, (_, _, down, _, _, rows, columns) = Code(context, builder), given
        start, end = (code.start(signature.args[n], given[n], given[n + 1]) for n in (0, 3))
        within, final = code.first_lanes(columns), builder.sub(rows, LONG(1))
        vectors = []
        for i in range(LANES):
            # A block with fewer rows than LANES reads its last row again. No tile reads these copies.
            row = builder.select(builder.icmp_signed("<", LONG(i), rows), LONG(i), final)
            vectors.append(code.load(start, builder.mul(row, down), within))
        by = 1
        while by < LANES:
            upper = [j + (LANES - by if j & by else 0) for j in range(LANES)]
            lower = [j + (LANES if j & by else by) for j in range(LANES)]
            for i in (each for each in range(LANES) if not each & by):
                pair = vectors[i], vectors[i + by]
                vectors[i], vectors[i + by] = (code.shuffled(*pair, order) for order in (upper, lower))
            by *= 2
        for k, vector in enumerate(vectors):
            code.store(vector, end, LONG(k * WIDTH))
        return context.get_dummy_value()

    return void(source, int64, int64, target, *[int64] * 3), write


@numba.njit(error_model="numpy")  # type: ignore[untyped-decorator]
def _transpose_by_loops(
    source: Floats, at: int, down: int, target: Floats, to: int, rows: int, columns: int
) -> None:
    """Write a block of at most LANES x LANES entries, transposed, into lines of WIDTH entries.

    `at`, `to`: its first entry in source and target. `down`: entries from row to row of source. `rows`,
    `columns`: of the block in source. What lies behind the rows in the first LANES entries of a line, and in
    lines behind the columns up to LANES of them, may be overwritten.
    """
    for i in range(rows):
        for k in range(columns):
            target[to + k * WIDTH + i] = source[at + i * down + k]


tile, transpose = (
    (_tile_in_registers, _transpose_in_registers) if HAS_VECTORS else (_tile_by_loops, _transpose_by_loops)
)
