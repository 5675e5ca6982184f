"""Check a run's seal, its file of hashes: it must name the right files, and the hashes must still match.

Who changes a file can make a new seal. `digest_of_seal` tells, if it was published with the model.
"""

import hashlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

from gdpfed.audit.run_files import RunFiles
from gdpfed.errors import AuditError
from gdpfed.json_files import read_json
from gdpfed.runs.file_formats import (
    ASSIGNMENT_FILE,
    CHECKPOINT_FILE,
    COLUMNS_FILE,
    DESCRIPTION_FILE,
    EVENTS_FOLDER,
    MANIFEST_FILE,
    MODEL_CARD_FILE,
    MODEL_FILE,
    PAGE_FILE,
    PAGE_SEAL_FILE,
    SEAL_FILE,
    SEALED,
    SEALED_AT_END,
    SEALED_IF_THERE,
)

ENDED = (*SEALED, *SEALED_AT_END, MODEL_CARD_FILE)
PAUSED = (*SEALED, CHECKPOINT_FILE)


def seal_findings(directory: Path) -> list[str]:
    """Return one line for each file of a run that has changed since the run ended.

    Raises AuditError: files that are missing or cannot be read.
    """
    return list(check_seal(directory, RunFiles.read(directory)))


def check_seal(directory: Path, files: RunFiles, also: Collection[str] = ()) -> Iterator[str]:
    """Yield a line for each file of a run that changed, is missing, or is not in the seal (file of hashes).

    An unfinished run has no seal yet, and a checkpoint. `also`: what a run of its mechanism has besides.
    """
    if files.columns is None and (directory / COLUMNS_FILE).exists():
        yield f"{COLUMNS_FILE} is there, and {ASSIGNMENT_FILE} names no columns that the run had"
    # A run may end before the last round of its plan; what it released says that it has ended.
    released = (directory / MODEL_FILE).exists() or MODEL_FILE in (files.seal or ())
    ended = released or len(files.rounds) >= files.plan["num_rounds"]
    if files.seal is None:
        # A round is logged before its checkpoint is written: a run killed in between has a line and no file.
        if (directory / MODEL_FILE).exists() or not (
            (directory / CHECKPOINT_FILE).is_file() or len(files.rounds) < min(2, files.plan["num_rounds"])
        ):
            yield f"{SEAL_FILE} is missing, with the hashes that a run leaves when it ends"
        return
    declared = (COLUMNS_FILE,) if files.columns is not None else ()
    wanted = {*(ENDED if ended else PAUSED), *declared, *also}
    for name in sorted(wanted - set(files.seal)):
        yield f"{SEAL_FILE} names no {name}, which {'an ended' if ended else 'a paused'} run has"
    for name, digest in files.seal.items():
        yield from _check_file(directory, name, digest, wanted)
    events = sorted(f"{EVENTS_FOLDER}/{each.name}" for each in (directory / EVENTS_FOLDER).glob("*"))
    there = [*(name for name in SEALED_IF_THERE if (directory / name).is_file()), *events]
    for name in there:
        if name not in files.seal:
            yield f"{name} is there, and {SEAL_FILE} does not name it"
    if ended:
        yield from _check_manifest(directory)
    yield from _check_page(directory)


def _check_file(directory: Path, name: str, digest: str, wanted: Collection[str]) -> Iterator[str]:
    path = directory / name
    known = name in wanted or name in SEALED_IF_THERE or Path(name).parent == Path(EVENTS_FOLDER)
    if not known or not path.resolve().is_relative_to(directory.resolve()):
        yield f"{SEAL_FILE} names {name}, which is not a file of the run"
    elif not path.is_file():
        yield f"{name} is missing, which {SEAL_FILE} names"
    elif _sha256(path) != digest:
        yield f"{name} is not the file that the run wrote: {SEAL_FILE} has another hash of it"


def _check_manifest(directory: Path) -> Iterator[str]:
    """Check that the model file and the description of the model's outputs were saved together."""
    manifest = directory / MANIFEST_FILE
    try:
        said: Any = read_json(manifest.read_text(encoding="utf-8"))
        hashes = {name: str(said["sha256"][Path(name).name]) for name in (MODEL_FILE, DESCRIPTION_FILE)}
    except (OSError, ValueError, TypeError, KeyError):
        yield f"{MANIFEST_FILE} does not say which weights and description belong together"
        return
    for name, digest in hashes.items():
        if (directory / name).is_file() and _sha256(directory / name) != digest:
            other = f"{MANIFEST_FILE} has another hash of it"
            yield f"{name} is not the file that was saved with this model: {other}"


def _check_page(directory: Path) -> Iterator[str]:
    """Check that a run's HTML report was made from the current files of the run."""
    page, seal = directory / PAGE_FILE, directory / PAGE_SEAL_FILE
    if not page.exists():
        return
    again = f"make it again with gdpfed report {directory} --html"
    try:
        said: Any = read_json(seal.read_text(encoding="utf-8"))
        page_digest, of_run = said["sha256"][PAGE_FILE], said["sha256"].get(SEAL_FILE)
    except FileNotFoundError:
        yield f"{PAGE_FILE} is there, and no {PAGE_SEAL_FILE} with its hash: {again}"
        return
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise AuditError(
            f"{seal} holds no hashes of a page ({type(error).__name__}): restore it from a copy, or {again}"
        ) from None
    if page_digest != _sha256(page):
        yield f"{PAGE_FILE} is not the page that was written, of which {PAGE_SEAL_FILE} has a hash: {again}"
    if of_run != digest_of_seal(directory):
        yield f"{PAGE_FILE} was made of other files, whose seal was {str(of_run)[:12]}: {again}"


def digest_of_seal(directory: Path) -> str | None:
    """Return the SHA-256 of a run's seal (its file of hashes), or None if the run has no seal yet."""
    path = directory / SEAL_FILE
    return _sha256(path) if path.is_file() else None


def _sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
