"""Tests of late imports: torch and the accountants are loaded only when they are needed."""

import gc
import importlib
import subprocess
import sys

import pytest

from gdpfed.late_import import loaded_for_good

HEAVY = (
    "torch",
    "dp_accounting.pld",
    "scipy.stats._distn_infrastructure",
    "scipy.optimize._optimize",
    "sklearn",
)


def test_the_client_app_loads_what_a_message_needs_and_no_more():
    names = f"[name for name in {HEAVY} if name in sys.modules]"
    done = subprocess.run(
        [sys.executable, "-c", f"import sys, client_app.app; print({names})"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip() == "[]"


def test_training_loads_torch_and_none_of_the_accountants():
    """Importing the module for training loads torch, but none of the accountants."""
    names = f"[name for name in {HEAVY} if name in sys.modules]"
    words = f"import sys, client_app.app, gdpfed.clients.update; print({names})"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['torch']"


def test_what_is_imported_late_is_there_when_it_is_used():
    words = "from gdpfed.late_import import late_import as f; print(f('scipy.special').logsumexp([0]))"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0.0"


def test_what_is_loaded_for_good_is_out_of_the_collectors_sight_once():
    words = """
import gc
from gdpfed.late_import import loaded_for_good
with loaded_for_good("fractions"):
    import fractions
    assert not gc.isenabled()
frozen = gc.get_freeze_count()
with loaded_for_good("fractions"):
    assert gc.isenabled()
    later = [[] for _ in range(1000)]
print(frozen > 1000, gc.get_freeze_count() <= frozen, gc.isenabled())
"""
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["True", "True", "True"]


def test_a_module_that_is_not_there_leaves_the_collector_on():
    with pytest.raises(ModuleNotFoundError), loaded_for_good("no_such_module"):
        importlib.import_module("no_such_module")
    assert gc.isenabled()
