"""While tests run, checks that arrays in function calls have the shapes that docstrings state.

`float[d] -> int64[d]` is said of the parameters in their order and of the result, `x float32[n, ...], y
int64[n] -> float64[n]` of those named. So is `x: float32[n]` in a list of arguments or attributes, and of the
result what comes first under "Returns:" or after a colon in the first line.

An array is of any dtype; float, int and uint are of any width. A name stands for one size in a call: that of
the argument or attribute so called where it is an int. "..." is any number of axes, and what is neither name
nor number is any size.

A call is judged once it has returned, so that functions may refuse what does not fit in their own words.
"""

import functools
import inspect
import re
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import FunctionType, ModuleType
from typing import Any

_ARRAY = r"\b(?:array|(?:float|uint|int|bool)\d*)\[[^\]]*\]"
_NAMED = rf"(?:\w+:? )?{_ARRAY}"
_PARTS = re.compile(r"(?:(\w+):? )?\b(array|(?:float|uint|int|bool)\d*)\[([^\]]*)\]")
_CALL = re.compile(rf"({_NAMED}(?:, {_NAMED})*) -> ({_NAMED}(?:, {_NAMED})*)")
_LISTED = re.compile(rf"^ +(\w+: {_ARRAY})", re.MULTILINE)
_RESULT = re.compile(rf"^[^\n]*: ({_ARRAY})[.,;]|Returns:\s+({_ARRAY})")

MOST_CHECKED = 300
"""At most this many calls of a function are checked in a process."""

Stated = tuple[str, str, str]
"""A stated shape: the argument's name (or an empty text), the dtype, and the axes."""


class ShapeError(Exception):
    """Raised if a function received or returned an array of another shape than its docstring states."""


def stated_shapes(text: str | None, parameters: Sequence[str]) -> tuple[dict[str, Stated], list[Stated]]:
    """Read the shapes that a docstring states: of parameters by name, and of results in order."""
    documentation = text or ""
    arguments = {each[0]: each for each in _PARTS.findall("\n".join(_LISTED.findall(documentation)))}
    found = _CALL.search(" ".join(documentation.split()))
    given, results = (_PARTS.findall(part) for part in found.groups()) if found else ([], [])
    if alone := _RESULT.search(documentation):
        results = results or _PARTS.findall(alone.group(1) or alone.group(2))
    positional = [name for name in parameters if name not in ("self", "cls")]
    for position, each in enumerate(given):
        arguments[each[0] if each[0] in parameters else positional[position]] = each
    return {name: each for name, each in arguments.items() if name in parameters}, results


def held_to(function: Callable[..., Any], documentation: str | None) -> Callable[..., Any]:
    """Wrap a function so that it raises ShapeError after a call that contradicts the stated shapes."""
    signature = inspect.signature(function)
    arguments, results = stated_shapes(documentation, list(signature.parameters))
    if not arguments and not results:
        return function

    left = MOST_CHECKED

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        nonlocal left
        result = function(*args, **kwargs)
        if not left:
            return result
        left -= 1
        given = signature.bind(*args, **kwargs).arguments
        sizes = {name: value for name, value in given.items() if type(value) is int}
        pairs: list[tuple[str, Stated, Any]]
        pairs = [(f"its {name}", stated, given.get(name)) for name, stated in arguments.items()]
        several = result if len(results) > 1 else (result,)
        pairs += [("its result", stated, value) for stated, value in zip(results, several, strict=False)]
        for what, (_, dtype, axes), value in pairs:
            if hasattr(value, "shape") and not _fits(value, dtype, axes, sizes, given.get("self")):
                found = f"{value.dtype}{list(value.shape)}"
                raise ShapeError(
                    f"{function.__qualname__}: {what} is {found}, not {dtype}[{axes}], at {sizes}"
                )
        return result

    return checked


def _fits(value: Any, dtype: str, axes: str, sizes: dict[str, int], owner: object) -> bool:
    """Whether an array has this dtype and these axes; an axis name means the same size wherever it occurs."""
    own = str(value.dtype).removeprefix("torch.")
    names, shape = [each.strip() for each in axes.split(",") if each.strip()], list(value.shape)
    if names and names[-1] == "...":
        names.pop()
        shape = shape[: len(names)]
    for name, size in zip(names, shape, strict=False):
        if name.isidentifier():
            known = getattr(owner, name, size)
            known = sizes.setdefault(name, known if type(known) is int else size)
        else:
            known = int(name) if name.isdecimal() else size
        if known != size:
            return False
    return dtype in ("array", own, own.rstrip("0123456789")) and len(names) == len(shape)


def check_module(module: ModuleType) -> None:
    """Make a module's functions and methods check the array shapes that their docstrings state."""
    for name, value in list(vars(module).items()):
        if getattr(value, "__module__", None) != module.__name__:
            continue
        if type(value) is FunctionType:
            setattr(module, name, held_to(value, value.__doc__))
        elif isinstance(value, type):
            for method, function in list(vars(value).items()):
                if type(function) is FunctionType and (documentation := _stated_for(value, method)):
                    setattr(value, method, held_to(function, documentation))


def _stated_for(cls: type, method: str) -> str:
    """Return a method's docstring that states array shapes, from the nearest class that has such a one."""
    own = cls.__doc__ if method == "__init__" else None
    texts = [own, *(getattr(vars(each).get(method), "__doc__", None) for each in cls.__mro__)]
    return next((text for text in texts if text and re.search(_ARRAY, text)), "")


class _Loader(SourceFileLoader):
    def exec_module(self, module: ModuleType) -> None:
        super().exec_module(module)
        check_module(module)


class _Finder:
    """An import hook that wraps the modules of some packages with shape checks once they are loaded."""

    def __init__(self, packages: Sequence[str]) -> None:
        self.packages = frozenset(packages)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        if name.partition(".")[0] not in self.packages:
            return None
        spec = PathFinder.find_spec(name, path, target)
        if spec is not None and type(spec.loader) is SourceFileLoader:
            spec.loader = _Loader(name, spec.loader.path)
        return spec


def check_documented_shapes(*packages: str) -> None:
    """Check shapes in all modules of these packages that are imported from now on."""
    sys.meta_path.insert(0, _Finder(packages))
