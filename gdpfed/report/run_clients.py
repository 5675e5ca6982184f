"""The clients of a finished run: the group and the name of each."""

from dataclasses import dataclass
from itertools import chain

from gdpfed.errors import ReportError
from gdpfed.json_files import WRONG_FORM, read_json
from gdpfed.report.finished_run import FinishedRun
from gdpfed.runs.file_formats import ASSIGNMENT_FILE, PARTIES


@dataclass(frozen=True)
class RunClients:
    """The groups of a run's clients, and the clients' names if they have any."""

    groups: list[list[int]]
    names: tuple[str, ...]

    @classmethod
    def of(cls, run: FinishedRun) -> "RunClients":
        """Read the clients of a run from its directory."""
        path = run.path / ASSIGNMENT_FILE
        try:
            saved = read_json(path.read_text(encoding="utf-8"))
            groups = [list(chain(*(range(*each) for each in group))) for group in saved["clients"]]
        except (OSError, *WRONG_FORM) as error:
            raise ReportError(
                f"{path} is not an assignment of clients: {error}; restore it from a copy"
            ) from None
        if [len(group) for group in groups] != [group["clients"] for group in run.plan["groups"]]:
            raise ReportError(f"{path} has other clients than the plan: restore it from a copy")
        return cls(groups, tuple(map(str, saved.get(PARTIES, ()))))

    def called(self, client: int) -> str:
        """Return the name of a client on pages about the run."""
        return self.names[client] if client < len(self.names) else f"client {client}"
