"""Write the test vectors, or check which of them have changed."""

import argparse
import logging
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from benchmarks.vectors.canary_vectors import ABOUT as ABOUT_CANARIES
from benchmarks.vectors.canary_vectors import canary_cases
from benchmarks.vectors.form import FOLDER, file_text
from benchmarks.vectors.ledger_vectors import ABOUT as ABOUT_LEDGERS
from benchmarks.vectors.ledger_vectors import ledger_cases
from benchmarks.vectors.noise_vectors import ABOUT as ABOUT_NOISE
from benchmarks.vectors.noise_vectors import noise_cases
from benchmarks.vectors.plan_vectors import ABOUT as ABOUT_PLANS
from benchmarks.vectors.plan_vectors import plan_cases
from benchmarks.vectors.sum_vectors import ABOUT as ABOUT_SUMS
from benchmarks.vectors.sum_vectors import sum_cases

KINDS: Mapping[str, tuple[str, Callable[[], Iterable[Mapping[str, Any]]]]] = {
    "plans": (ABOUT_PLANS, plan_cases),
    "noise": (ABOUT_NOISE, noise_cases),
    "sums": (ABOUT_SUMS, sum_cases),
    "canaries": (ABOUT_CANARIES, canary_cases),
    "ledgers": (ABOUT_LEDGERS, ledger_cases),
}
"""Every file by its name: what it is about, and what makes its cases."""


def text_of(kind: str) -> str:
    """Make the test vectors of one kind, such as privacy plans; return the JSON text of their file."""
    about, cases = KINDS[kind]
    return file_text(kind, about, list(cases()))


def main() -> int:
    """Write or check the test vectors; return the exit status, 1 if --check finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, and say what would change")
    checked = parser.parse_args().check
    # What a node logs when it refuses is for its operator.
    logging.disable(logging.ERROR)
    changed = []
    for kind in KINDS:
        path, text = FOLDER / f"{kind}.json", text_of(kind)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            changed.append(path.name)
            if not checked:
                path.write_text(text, encoding="utf-8")
    print(f"{'would change' if checked else 'written'}: {', '.join(changed) or 'nothing'}")
    return int(checked and bool(changed))


if __name__ == "__main__":
    sys.exit(main())
