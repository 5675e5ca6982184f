"""Modules that are loaded when something of them is first used.

In a deployment every message starts a fresh process, and most messages neither train nor account.
"""

import sys
from importlib.util import LazyLoader, find_spec, module_from_spec
from typing import Any


def late_import(name: str) -> Any:
    """The module of this name; it is loaded at the first use of one of its attributes.

    Raises:
        ModuleNotFoundError: there is no such module.
    """
    if name in sys.modules:
        return sys.modules[name]
    spec = find_spec(name)
    if spec is None or spec.loader is None:
        raise ModuleNotFoundError(f"no module named {name}", name=name)
    spec.loader = LazyLoader(spec.loader)
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module
