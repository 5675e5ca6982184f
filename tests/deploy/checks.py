"""What a program of checks has found: each with its outcome and its seconds, for a document."""

from collections.abc import Callable
from dataclasses import dataclass, field
from time import perf_counter

from gdpfed.errors import GDPFedError
from tests.deploy.containers.engine import EngineError

CHECK_COLUMNS = ("check", "outcome", "seconds")


@dataclass
class Checks:
    """What was checked, in order; a check that raises is one that failed, and the next go on.

    Attributes:
        rows: what, outcome, seconds.
        interrupted: whether somebody ended them before the last.
    """

    rows: list[tuple[str, str, str]] = field(default_factory=list)
    interrupted: bool = False

    def __call__(self, what: str, holds: Callable[[], object]) -> bool:
        """Check one thing: ``holds`` returns something true."""
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
        """How many failed."""
        return sum(outcome != "holds" for _, outcome, _ in self.rows)
