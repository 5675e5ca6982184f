"""A message that neither trains nor accounts loads neither torch nor the accountants."""

import subprocess
import sys

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


def test_what_is_imported_late_is_there_when_it_is_used():
    words = "from gdpfed.late_import import late_import as f; print(f('scipy.special').logsumexp([0]))"
    done = subprocess.run([sys.executable, "-c", words], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "0.0"
