"""Record the checks of a test program, with outcome and duration, for a table in a document."""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

from gdpfed.errors import GDPFedError
from tests.deploy.containers.engine import EngineError

CHECK_COLUMNS = ("check", "outcome", "seconds")


@dataclass
class Checks:
    """Run checks in order and record their outcomes; a check that raises an error has failed.

    Attributes:
        rows: what, outcome, seconds.
        interrupted: whether somebody ended them before the last.
    """

    rows: list[tuple[str, str, str]] = field(default_factory=list)
    interrupted: bool = False

    def __call__(self, what: str, holds: Callable[[], object]) -> bool:
        """Run one check, which passes if ``holds`` returns a true value; return whether it passes."""
        started = perf_counter()
        try:
            passed, said = bool(holds()), ""
        except (GDPFedError, EngineError, OSError, ValueError, LookupError, AssertionError) as error:
            passed, said = False, f": {error}"
        seconds = perf_counter() - started
        print(f"{'ok   ' if passed else 'WRONG'} {what} ({seconds:.0f} s){said}", flush=True)
        self.rows.append((what, "holds" if passed else "FAILS", f"{seconds:.0f}"))
        return passed

    @property
    def failed(self) -> int:
        """The number of checks that failed."""
        return sum(outcome != "holds" for _, outcome, _ in self.rows)
