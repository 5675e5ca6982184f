"""Tests of shapes that docstrings state: they are parsed, and a call that violates them is reported."""

import inspect
import sys
from typing import Any

import numpy as np
import pytest

from testing.documented_shapes import ShapeError, check_module, held_to, stated_shapes


def doubled(x, factor=2):
    """Twice the values: float[n] -> float64[n]."""
    return (np.append(x, 0) if factor == 0 else factor * x).astype(np.float64)


def zeros(count, rows, scale=None):
    """Nothing.

    Args:
        scale: float32[count], or nothing.

    Returns:
        int64[2, rows, ...], zeros.
    """
    return np.zeros((2, rows, count), dtype=np.int64)


class Base:
    width = 3

    def rows(self, x):
        """x array[n, width] -> array[n], bool[n]."""
        return x[:, 0], x[:, 0] > 0


class Wrong(Base):
    def rows(self, x):
        """As ever, and one too few."""
        return x[1:, 0], x[1:, 0] > 0


def test_shapes_are_read_from_arguments_and_results():
    assert stated_shapes(doubled.__doc__, ["x", "factor"]) == (
        {"x": ("values", "float", "n")},
        [("", "float64", "n")],
    )
    arguments, results = stated_shapes(zeros.__doc__, ["count", "rows", "scale"])
    assert list(arguments) == ["scale"]
    assert results == [("", "int64", "2, rows, ...")]
    assert held_to(test_shapes_are_read_from_arguments_and_results, "Nothing is said.").__doc__ is None


def test_calls_that_keep_what_is_stated_are_as_before():
    assert held_to(doubled, doubled.__doc__)(np.ones(3, np.float32)).tolist() == [2.0, 2.0, 2.0]
    assert held_to(zeros, zeros.__doc__)(3, rows=2, scale=np.ones(3, np.float32)).shape == (2, 2, 3)
    assert held_to(zeros, zeros.__doc__)(3, 2).shape == (2, 2, 3)


@pytest.mark.parametrize(
    ("function", "arguments", "words"),
    [
        (doubled, (np.ones(3, np.int64),), r"its x is int64\[3\], not float\[n\]"),
        (doubled, (np.ones((3, 1)),), r"its x is float64\[3, 1\], not float\[n\]"),
        (doubled, (np.ones(3), 0), r"its result is float64\[4\], not .*'n': 3"),
        (zeros, (3, 2, np.ones(2, np.float32)), r"its scale is float32\[2\]"),
    ],
)
def test_calls_that_do_not_are_named(function, arguments, words):
    with pytest.raises(ShapeError, match=words):
        held_to(function, function.__doc__)(*arguments)


def test_a_method_is_held_to_what_the_method_of_its_base_states():
    check_module(sys.modules[__name__])
    assert inspect.unwrap(Wrong.rows) is not Wrong.rows
    Base().rows(np.ones((2, 3)))
    with pytest.raises(ShapeError, match=r"Wrong.rows: its result is float64\[1\], not array\[n\]"):
        Wrong().rows(np.ones((2, 3)))
    with pytest.raises(ShapeError, match=r"Base.rows: its x is float64\[2, 4\], not array\[n, width\]"):
        Base().rows(np.ones((2, 4)))


def test_core_functions_state_their_shapes_and_are_held_to_them():
    from fastgrad.record_gradients import RecordGradients
    from gdpfed.clients.rounding import clipped_steps
    from gdpfed.learning.training.local_update import clip, local_update
    from gdpfed.methods.base import ClientSum, Method
    from secagg import ClientSession, Encoding

    held: list[Any] = [Encoding.encode, Encoding.decode, ClientSession.mask, RecordGradients.clipped_sums]
    held += [local_update, clip, clipped_steps, Method.step, ClientSum.__init__]
    assert all(inspect.unwrap(function) is not function for function in held)
