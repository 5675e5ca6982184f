"""Counts a run's recorded costs in a file outside its directory, to notice if an old copy is resumed.

A copy of a run directory lacks the rounds after the copy. If it were resumed, it would release those rounds a
second time with new noise, and its ledger would state half of their cost. So a count is kept outside the run
directory, and increased before anything is sent to clients. Whoever increases it must have been the last to
do so: of two copies that are resumed at the same time, one goes on.
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gdpfed.errors import RunError
from gdpfed.files import read_regular, save_whole
from gdpfed.privacy.ledgers.server import Ledger
from gdpfed.runs.paths import OWNERS_ALONE

FOLDER = ".charged"


class ChargedMark:
    """The number of privacy costs that one run has recorded, in a file outside the run's directory.

    `run`: the run directory; a folder beside it holds the counts of all runs. `name`: the run's name, which
    stays the same when the run is resumed or copied.
    """

    def __init__(self, run: Path, name: str) -> None:
        self._run = run
        self.path = run.parent / FOLDER / name
        self._last: bytes | None = None

    @contextmanager
    def raised_to(self, ledger: Ledger) -> Iterator[None]:
        """Run the ``with`` block, which saves the ledger, then write its number of costs to this file.

        Raises RunError if another process has raised the count meanwhile, or if the file system refuses.
        """
        try:
            self.path.parent.mkdir(mode=OWNERS_ALONE, exist_ok=True)
        except OSError as error:
            raise RunError(
                f"{self.path.parent}, where charges of runs are counted, cannot be made: {error.strerror}; "
                "name a run.directory in a folder in which you may write"
            ) from None
        folder = os.open(self.path.parent, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            if (read_regular(self.path) if self.path.exists() else None) != self._last:
                raise RunError(
                    f"another process has continued this run or a copy of it, as {self.path} shows: "
                    f"{self._run} would release the same rounds again; leave the run to that process"
                )
            yield
            now = f"{_charges_in(ledger)}\n".encode()
            save_whole(self.path, now)
            self._last = now
        finally:
            os.close(folder)

    def check(self, ledger: Ledger) -> None:
        """Raise RunError if a run's ledger has fewer costs than the count outside the run's directory."""
        held = _charges_in(ledger)
        try:
            self._last = read_regular(self.path)
            most = int(self._last)
        except FileNotFoundError:
            raise RunError(
                f"run.resume={self._run}: {self.path}, which records how far it was charged, is missing: if "
                "the directory was moved, move this file with it; a copy cannot be resumed, since the run "
                "may have been continued elsewhere"
            ) from None
        except (OSError, ValueError) as error:
            raise RunError(
                f"run.resume={self._run}: {self.path} cannot be read ({error}): restore it"
            ) from None
        if held < most:
            raise RunError(
                f"run.resume={self._run} is an older copy: its ledger holds {held} charges, and the run had "
                f"{most} ({self.path}), so what was released since would be released again; restore the "
                "newest directory, or start a new run"
            )


def _charges_in(ledger: Ledger) -> int:
    """Count the privacy costs in a ledger: of rounds, of sums outside the rounds, and of class counts."""
    return ledger.charged_rounds + len(ledger.charged_once) + ledger.counts_charged
