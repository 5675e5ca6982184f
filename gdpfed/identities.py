"""Files of identities: signing keys, public keys, and the consortium's signed list of keys (roster)."""

import os
import re
import stat
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path

from gdpfed.errors import InputError
from gdpfed.files import PRIVATE_MODE, create_file
from secagg import Identity, Roster, RosterError

OTHERS, WRITABLE = 0o077, 0o022
ROOT = 0
_PUBLIC_KEY = re.compile("[0-9a-f]{64}")


class IdentityError(InputError):
    """Raised for an identity file or list of keys (roster) that cannot be used; names file and remedy."""


def new_identity(path: Path) -> Identity:
    """Draw a signing key from the operating system, and write it to a new file that only its owner can read.

    Raises IdentityError: the file exists, or cannot be written.
    """
    identity = Identity(os.urandom(32))
    write_new(path, identity.to_pem(), PRIVATE_MODE)
    return identity


def read_identity(path: Path, owner: int | None = None) -> Identity:
    """Read a signing key that belongs to this process's user, to root or to ``owner``.

    Raises IdentityError: no such file, one that others can read or replace, or one that holds no Ed25519 key.
    """
    try:
        with path.open("rb") as file:
            found, folder = os.fstat(file.fileno()), path.resolve().parent.stat()
            mode = found.st_mode
            pem = b"" if mode & OTHERS else file.read()
    except OSError as error:
        raise IdentityError(
            f"{path} cannot be read: {error.strerror}; make an identity with: gdpfed identity new {path}"
        ) from None
    if mode & OTHERS:
        raise IdentityError(f"{path} is open to others (mode {mode & 0o777:o}): chmod 600 {path}")
    for name, each in ((str(path), found), (f"{path.parent}, its folder,", folder)):
        if each.st_uid not in (os.geteuid(), ROOT, owner):
            raise IdentityError(f"{name} belongs to user {each.st_uid}: give it to user {os.geteuid()}")
    if folder.st_mode & WRITABLE and not folder.st_mode & stat.S_ISVTX:
        raise IdentityError(f"others may replace files in {path.parent}: chmod 700 {path.parent}")
    try:
        return Identity.from_pem(pem)
    except ValueError as error:
        raise IdentityError(
            f"{path} is not an identity: {error}; make one with: gdpfed identity new"
        ) from None


def public_key_of(word: str) -> bytes:
    """Return a public key, given in hexadecimal or as the path of a file that holds it.

    Raises IdentityError: neither.
    """
    text = word.strip()
    if not _PUBLIC_KEY.fullmatch(text):
        try:
            text = Path(word).expanduser().read_text(encoding="ascii").strip()
        except (OSError, ValueError):
            raise IdentityError(
                f"{word} is neither a public key (64 hexadecimal digits, lower case) nor a file with one: "
                "gdpfed identity show FILE prints the public key of an identity"
            ) from None
        if not _PUBLIC_KEY.fullmatch(text):
            raise IdentityError(
                f"{word} holds no public key: write into it what gdpfed identity show FILE prints, 64 "
                "hexadecimal digits"
            )
    return bytes.fromhex(text)


def signed_roster(
    keys: Mapping[int, bytes], consortium: Identity, number: int | None = None, *, after: int = -1
) -> bytes:
    """Return the content of a file: a dated list of clients' public keys, signed by the consortium.

    `keys`: of the clients. `consortium`: that signs. `number`: by which nodes tell it from an older one,
    higher than any before; the seconds since 1970 if none is given, or one above `after`, of the one before,
    where a clock was ahead then. Raises IdentityError: keys that make no roster.
    """
    try:
        now = time.time()
        date = datetime.fromtimestamp(now, UTC).date().isoformat()
        number = max(int(now), after + 1) if number is None else number
        return Roster(keys, number=number, date=date).signed_by(consortium)
    except RosterError as error:
        raise IdentityError(f"no roster can be made: {error}") from None


def read_roster(path: Path, consortium_key: bytes) -> Roster:
    """Read a signed list of public keys (roster), and check the consortium's signature.

    Raises IdentityError: no such file, one that is damaged, or one that this consortium has not signed.
    """
    try:
        return Roster.from_signed(path.read_bytes(), consortium_key)
    except OSError as error:
        raise IdentityError(
            f"{path} cannot be read: {error.strerror}; ask the consortium for its signed roster"
        ) from None
    except RosterError as error:
        raise IdentityError(
            f"{path} cannot be used as a roster: {error}; ask the consortium for its signed roster again"
        ) from None


def write_new(path: Path, data: bytes, mode: int) -> None:
    """Write a new file as `create_file` does; raise IdentityError if the file exists."""
    try:
        create_file(path, data, mode)
    except FileExistsError:
        raise IdentityError(f"{path} exists and is kept: name a new file, or move it away first") from None
    except OSError as error:
        raise IdentityError(f"{path} cannot be written: {error.strerror}; name another file") from None
