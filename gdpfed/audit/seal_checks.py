"""Check that the files are those that the run wrote when it ended or paused."""

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from gdpfed.audit.run_files import RunFiles
from gdpfed.runs.records import MODEL_FILE, SEAL_FILE


def check_seal(directory: Path, files: RunFiles) -> Iterator[str]:
    """One line for every file that changed or is missing; an unfinished run has no seal yet.

    Who changes a file can make a new seal. `digest_of_seal` tells, if it was published with the model.
    """
    if files.seal is None:
        if (directory / MODEL_FILE).exists():
            yield f"{SEAL_FILE} is missing, with the hashes that a run leaves when it ends"
        return
    for name, digest in files.seal.items():
        path = directory / Path(name).name
        if not path.is_file():
            yield f"{path.name} is missing, which {SEAL_FILE} names"
        elif sha256(path.read_bytes()).hexdigest() != digest:
            yield f"{path.name} is not the file that the run wrote: {SEAL_FILE} has another hash of it"


def digest_of_seal(directory: Path) -> str | None:
    """SHA-256 of the seal, which holds those of the other files; None of a run that goes on."""
    path = directory / SEAL_FILE
    return sha256(path.read_bytes()).hexdigest() if path.is_file() else None
