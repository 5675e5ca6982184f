"""Tiles of matrix products in vectors that stay in a core's registers, as machine code by LLVM (numba).

The vectors are as wide as the processor has them, with AVX-512 or AVX2. Other processors take plain loops.
All arrays are float32 and flat.

numba keeps compiled loops with the code of a tile in them, and compiles them anew only where their own file
has changed. Whoever changes this file touches `products.py` and `embedding_lstm.py`, too.
"""

from typing import Any

import numba
from llvmlite import binding, ir
from numba.core import cgutils
from numba.extending import intrinsic
from numba.np import arrayobj
from numba.types import bool_, int64, void

from fastgrad.kernels import Floats

_FEATURES = (numba.config.CPU_FEATURES or binding.get_host_cpu_features().flatten()).split(",")
HAS_TILES = "+avx512f" in _FEATURES or {"+avx2", "+fma"} <= set(_FEATURES)
"""Whether the processor has vectors for which tiles are written."""
LANES, SUMS = (16, 16) if "+avx512f" in _FEATURES else (8, 12)
"""Floats of a vector, and the most vectors of sums in a tile: registers are left for what is multiplied."""
VECTORS = 2
"""The most vectors in a row of a tile."""
WIDTH = LANES * VECTORS
# So many rows of the left matrix share an address; each with one of its own, registers for them run out.
_GROUP = 4

_FLOAT, _LONG, _INT, _BIT = ir.FloatType(), ir.IntType(64), ir.IntType(32), ir.IntType(1)
_VECTOR, _MASK = ir.VectorType(_FLOAT, LANES), ir.VectorType(_BIT, LANES)
_ZEROS = ir.Constant(_VECTOR, [0.0] * LANES)


class _Code:
    """Writes LLVM's code on vectors: addresses, loads and stores of some lanes, and the code of a tile."""

    def __init__(self, context: Any, builder: ir.IRBuilder) -> None:
        self._context, self.builder = context, builder

    def start(self, kind: Any, array: Any, at: Any) -> Any:
        """Return the address of the entry ``at`` of a numba array of this type."""
        data = arrayobj.make_array(kind)(self._context, self.builder, array).data
        return self.builder.gep(data, [at])

    def spread(self, value: Any, kind: Any) -> Any:
        """Return a vector with the same value in all lanes."""
        empty = ir.Constant(ir.VectorType(kind, LANES), ir.Undefined)
        first = self.builder.insert_element(empty, value, _INT(0))
        return self.shuffled(first, empty, [0] * LANES)

    def shuffled(self, first: Any, second: Any, order: list[int]) -> Any:
        """Return the vector of these lanes of two, which count on in the second."""
        return self.builder.shuffle_vector(first, second, ir.Constant(ir.VectorType(_INT, LANES), order))

    def first_lanes(self, count: Any) -> Any:
        """Return the mask of the first lanes, as many as ``count`` says."""
        lanes = ir.Constant(ir.VectorType(_LONG, LANES), list(range(LANES)))
        return self.builder.icmp_signed("<", lanes, self.spread(count, _LONG))

    def load(self, start: Any, place: Any, mask: Any = None) -> Any:
        """Return the vector that begins at a place behind an address; 0 outside of the mask, if given."""
        address = self._vector_at(start, place)
        if mask is None:
            loaded = self.builder.load(address)
            loaded.align = 4
            return loaded
        kinds = [address.type, _INT, _MASK, _VECTOR]
        return self._call("masked.load", _VECTOR, kinds, [address, _INT(4), mask, _ZEROS], ".p0")

    def store(self, vector: Any, start: Any, place: Any, mask: Any = None) -> None:
        """Store the lanes of a vector that are in the mask, or all; places are as in `load`."""
        address = self._vector_at(start, place)
        if mask is None:
            self.builder.store(vector, address).align = 4
            return
        kinds = [_VECTOR, address.type, _INT, _MASK]
        self._call("masked.store", ir.VoidType(), kinds, [vector, address, _INT(4), mask], ".p0")

    def _vector_at(self, start: Any, place: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(start, [place]), _VECTOR.as_pointer())

    def _call(self, name: str, result: Any, kinds: list[Any], given: list[Any], pointers: str = "") -> Any:
        lanes = f".v{LANES}f32"
        full = f"llvm.{name}{lanes}" + (f"{pointers}{lanes[1:]}" if pointers else "")
        function = ir.FunctionType(result, kinds)
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, function, full), given)

    def tile(
        self, rows: int, vectors: int, starts: list[Any], steps: list[Any], depth: Any, adds: Any, last: Any
    ) -> None:
        """Write a tile of out = left times right, or of out + it, and leave the builder behind it.

        `rows`, `vectors`: its size. `starts`: addresses of left, right and out. `steps`: entries from one row
        of left to the next, from one column of it to the next, and from row to row of right and of out.
        `depth`: of the sums, at least 1. `adds`: the mask of all lanes if out is added to, else of none.
        `last`: the mask of the lanes that the last vector of a row has in the matrix.
        """
        builder, (left, right, out), (down, along, right_down, out_down) = self.builder, starts, steps
        cells = [(i, j) for i in range(rows) for j in range(vectors)]
        masks = [last if j == vectors - 1 else None for j in range(vectors)]
        places = [builder.add(builder.mul(out_down, _LONG(i)), _LONG(LANES * j)) for i, j in cells]
        begun = [
            self.load(out, place, adds if masks[j] is None else builder.and_(adds, last))
            for place, (_, j) in zip(places, cells, strict=True)
        ]
        offsets = [builder.mul(down, _LONG(i)) for i in range(_GROUP)]
        firsts = [builder.gep(left, [builder.mul(down, _LONG(i))]) for i in range(0, rows, _GROUP)]
        before, loop, behind = builder.block, *(builder.append_basic_block() for _ in range(2))
        builder.branch(loop)
        builder.position_at_end(loop)
        k, sums = builder.phi(_LONG), [builder.phi(_VECTOR) for _ in cells]
        columns = [builder.phi(left.type) for _ in firsts]
        right_place = builder.mul(k, right_down)
        terms = [
            self.load(right, builder.add(right_place, _LONG(LANES * j)), mask) for j, mask in enumerate(masks)
        ]
        factors = [
            builder.load(builder.gep(columns[i // _GROUP], [offsets[i % _GROUP]])) for i in range(rows)
        ]
        spread = [self.spread(factor, _FLOAT) for factor in factors]
        added = [
            self._call("fma", _VECTOR, [_VECTOR] * 3, [spread[i], terms[j], total])
            for total, (i, j) in zip(sums, cells, strict=True)
        ]
        following = builder.add(k, _LONG(1))
        next_columns = [builder.gep(each, [along]) for each in columns]
        phis, first = [k, *columns, *sums], [_LONG(0), *firsts, *begun]
        for phi, *values in zip(phis, first, [following, *next_columns, *added], strict=True):
            for value, block in zip(values, (before, loop), strict=True):
                phi.add_incoming(value, block)
        builder.cbranch(builder.icmp_signed("<", following, depth), loop, behind)
        builder.position_at_end(behind)
        for place, vector, (_, j) in zip(places, added, cells, strict=True):
            self.store(vector, out, place, masks[j])


@intrinsic  # type: ignore[untyped-decorator]
def _tile_in_registers(
    typing: Any, left: Any, left_at: Any, down: Any, along: Any, right: Any, right_at: Any, right_down: Any,
    out: Any, out_at: Any, out_down: Any, rows: Any, columns: Any, depth: Any, adds: Any,
) -> Any:  # fmt: skip
    """Compute a tile as `_tile_by_loops` does, with its sums in registers."""

    def write(context: Any, builder: ir.IRBuilder, signature: Any, given: Any) -> Any:
        code, kinds = _Code(context, builder), signature.args
        starts = [code.start(kinds[at], given[at], given[at + 1]) for at in (0, 4, 7)]
        steps = [given[2], given[3], given[6], given[9]]
        rows, columns, depth, adds = given[10:]
        vectors = builder.sdiv(builder.add(columns, _LONG(LANES - 1)), _LONG(LANES))
        before_last = builder.mul(builder.sub(vectors, _LONG(1)), _LONG(LANES))
        last = code.first_lanes(builder.sub(columns, before_last))
        every = code.spread(builder.icmp_signed("!=", adds, adds.type(0)), _BIT)
        end = builder.append_basic_block()
        choice = builder.switch(builder.add(builder.mul(rows, _LONG(VECTORS)), vectors), end)
        for number in range(1, VECTORS + 1):
            for height in range(1, SUMS // number + 1):
                block = builder.append_basic_block()
                choice.add_case(_LONG(height * VECTORS + number), block)
                builder.position_at_end(block)
                code.tile(height, number, starts, steps, depth, every, last)
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
        code, (_, _, down, _, _, rows, columns) = _Code(context, builder), given
        start, end = (code.start(signature.args[n], given[n], given[n + 1]) for n in (0, 3))
        within, final = code.first_lanes(columns), builder.sub(rows, _LONG(1))
        vectors = []
        for i in range(LANES):
            # Lanes for which there is no row repeat the last one; nobody asks for them.
            row = builder.select(builder.icmp_signed("<", _LONG(i), rows), _LONG(i), final)
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
            code.store(vector, end, _LONG(k * WIDTH))
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
    (_tile_in_registers, _transpose_in_registers) if HAS_TILES else (_tile_by_loops, _transpose_by_loops)
)
