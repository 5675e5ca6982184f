"""Vectors of float32 as wide as the processor has them, as machine code written by LLVM (numba).

Processors without AVX-512 and AVX2 take plain loops. All arrays are flat.

numba keeps compiled loops with the code of what they call in them, and compiles them anew only where the text
of their own file has changed. So files with such loops name the code that they hold, which a test compares.
"""

from functools import partial
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from llvmlite import ir
from numba.core import cgutils
from numba.core.codegen import get_host_cpu_features
from numba.extending import intrinsic
from numba.np import arrayobj
from numba.types import int64, void

# Of what numba compiles for.
_GIVEN = numba.config.CPU_FEATURES
_FEATURES = (get_host_cpu_features() if _GIVEN is None else _GIVEN).split(",")
HAS_AVX512 = "+avx512f" in _FEATURES
HAS_VECTORS = HAS_AVX512 or {"+avx2", "+fma"} <= set(_FEATURES)
"""Whether the processor has AVX-512, or AVX2 with fused operations."""
LANES = 16 if HAS_AVX512 else 8
"""How many floats a vector has."""

Floats = npt.NDArray[np.float32]

FLOAT, LONG, INT, BIT = ir.FloatType(), ir.IntType(64), ir.IntType(32), ir.IntType(1)
VECTOR, MASK = ir.VectorType(FLOAT, LANES), ir.VectorType(BIT, LANES)
HALF = LANES // 2
_ZEROS = ir.Constant(VECTOR, [0.0] * LANES)


class Code:
    """Writes LLVM's code on vectors.

    `context`: of numba. `builder`: stands where the next code is to be written.
    """

    def __init__(self, context: Any, builder: ir.IRBuilder) -> None:
        self._context, self.builder = context, builder

    def start(self, kind: Any, array: Any, at: Any) -> Any:
        """Return the address of the entry ``at`` of a numba array of this type."""
        data = arrayobj.make_array(kind)(self._context, self.builder, array).data
        return self.builder.gep(data, [at])

    def spread(self, value: Any, kind: Any) -> Any:
        """Return a vector with the same value in all lanes; ``kind`` is the value's type in LLVM."""
        empty = ir.Constant(ir.VectorType(kind, LANES), ir.Undefined)
        first = self.builder.insert_element(empty, value, INT(0))
        return self.shuffled(first, empty, [0] * LANES)

    def shuffled(self, first: Any, second: Any, order: list[int]) -> Any:
        """Return the vector of these lanes of two, which count on in the second."""
        return self.builder.shuffle_vector(first, second, ir.Constant(ir.VectorType(INT, LANES), order))

    def first_lanes(self, count: Any) -> Any:
        """Return the mask of the first lanes, as many as ``count`` says."""
        lanes = ir.Constant(ir.VectorType(LONG, LANES), list(range(LANES)))
        return self.builder.icmp_signed("<", lanes, self.spread(count, LONG))

    def load(self, start: Any, place: Any, mask: Any = None, kind: Any = VECTOR) -> Any:
        """Return the vector that begins at a place behind an address; 0 outside of the mask, if given.

        `kind`: its type; with a mask, VECTOR.
        """
        address = self._vector_at(start, place, kind)
        if mask is None:
            loaded = self.builder.load(address)
            loaded.align = 4
            return loaded
        kinds = [address.type, INT, MASK, VECTOR]
        return self.call("masked.load", VECTOR, kinds, [address, INT(4), mask, _ZEROS], ".p0")

    def store(self, vector: Any, start: Any, place: Any, mask: Any = None) -> None:
        """Store the lanes of a vector that are in the mask, or all; places are as in `load`."""
        address = self._vector_at(start, place, vector.type)
        if mask is None:
            self.builder.store(vector, address).align = 4
            return
        kinds = [VECTOR, address.type, INT, MASK]
        self.call("masked.store", ir.VoidType(), kinds, [vector, address, INT(4), mask], ".p0")

    def _vector_at(self, start: Any, place: Any, kind: Any) -> Any:
        return self.builder.bitcast(self.builder.gep(start, [place]), kind.as_pointer())

    def call(self, name: str, result: Any, kinds: list[Any], given: list[Any], pointers: str = "") -> Any:
        """Return what one of LLVM's functions on vectors gives.

        `kinds`: LLVM's types of what it is given. `pointers`: a suffix of its name, for their address space.
        """
        lanes = f".v{LANES}f32"
        full = f"llvm.{name}{lanes}" + (f"{pointers}{lanes[1:]}" if pointers else "")
        function = ir.FunctionType(result, kinds)
        return self.builder.call(cgutils.get_or_insert_function(self.builder.module, function, full), given)


def _write_run(adds: bool, context: Any, builder: ir.IRBuilder, signature: Any, given: Any) -> Any:
    code, (_, _, _, _, count) = Code(context, builder), given
    source, target = (code.start(signature.args[n], given[n], given[n + 1]) for n in (0, 2))
    mask = code.first_lanes(count)
    vector = code.load(source, LONG(0), mask)
    if adds:
        vector = builder.fadd(code.load(target, LONG(0), mask), vector)
    code.store(vector, target, LONG(0), mask)
    return context.get_dummy_value()


def _write_copy(lanes: int, context: Any, builder: ir.IRBuilder, signature: Any, given: Any) -> Any:
    """Write a copy of as many entries as there are lanes, without a mask."""
    code = Code(context, builder)
    source, target = (code.start(signature.args[n], given[n], given[n + 1]) for n in (0, 2))
    vector = code.load(source, LONG(0), kind=ir.VectorType(FLOAT, lanes))
    code.store(vector, target, LONG(0))
    return context.get_dummy_value()


@intrinsic  # type: ignore[untyped-decorator]
def _copy_vector(typing: Any, source: Any, at: Any, target: Any, to: Any) -> Any:
    """Copy a whole vector."""
    return void(source, int64, target, int64), partial(_write_copy, LANES)


@intrinsic  # type: ignore[untyped-decorator]
def _copy_half(typing: Any, source: Any, at: Any, target: Any, to: Any) -> Any:
    """Copy half a vector."""
    return void(source, int64, target, int64), partial(_write_copy, HALF)


@intrinsic  # type: ignore[untyped-decorator]
def _copy_lanes(typing: Any, source: Any, at: Any, target: Any, to: Any, count: Any) -> Any:
    """Copy the first ``count`` entries of a vector."""
    return void(source, int64, target, int64, int64), partial(_write_run, False)


@intrinsic  # type: ignore[untyped-decorator]
def _add_lanes(typing: Any, source: Any, at: Any, target: Any, to: Any, count: Any) -> Any:
    """Add the first ``count`` entries of a vector to others."""
    return void(source, int64, target, int64, int64), partial(_write_run, True)


def _copy_by_vectors(source: Floats, at: int, target: Floats, to: int, count: int) -> None:
    """Copy ``count`` entries from one place on to another, in vectors.

    A store with a mask takes longer, so that only what is left over has one.
    """
    t = 0
    while t + LANES <= count:
        _copy_vector(source, at + t, target, to + t)
        t += LANES
    if t + HALF <= count:
        _copy_half(source, at + t, target, to + t)
        t += HALF
    if t < count:
        _copy_lanes(source, at + t, target, to + t, count - t)


def _copy_by_loop(source: Floats, at: int, target: Floats, to: int, count: int) -> None:
    """Copy ``count`` entries from one place on to another, in a loop."""
    taken, given = source[at : at + count], target[to : to + count]
    for t in range(count):
        given[t] = taken[t]


def _add_by_vectors(source: Floats, at: int, target: Floats, to: int, count: int) -> None:
    """Add ``count`` entries from one place on to those of another, in vectors."""
    for t in range(0, count, LANES):
        _add_lanes(source, at + t, target, to + t, count - t)


def _add_by_loop(source: Floats, at: int, target: Floats, to: int, count: int) -> None:
    """Add ``count`` entries from one place on to those of another, in a loop."""
    taken, given = source[at : at + count], target[to : to + count]
    for t in range(count):
        given[t] += taken[t]


copy, add = (
    numba.njit(error_model="numpy")(function)
    for function in ((_copy_by_vectors, _add_by_vectors) if HAS_VECTORS else (_copy_by_loop, _add_by_loop))
)
