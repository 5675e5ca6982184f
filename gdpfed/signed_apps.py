"""Signed Flower apps: the consortium (all parties together) signs app bundles; nodes check the signatures.

The consortium signs twice with one key. One signature is Flower's own, over the time and the bundle's digest,
which a SuperNode with ``--trusted-entities`` checks. It says nothing of versions and never expires. So the
other is over an `AppStatement`, which says these, and ``deploy.supernode`` checks both before anything runs.
"""

import io
import json
import lzma
import re
import time
import tomllib
import zipfile
import zlib
from base64 import urlsafe_b64encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from pathlib import Path
from typing import Any, Self

from gdpfed.errors import InputError, words_of
from gdpfed.identities import IdentityError, write_new
from gdpfed.json_files import WRONG_FORM, read_json
from secagg import Identity
from secagg.crypto.signatures import is_signed

SIGNATURE_SUFFIX = ".signature"
ANY_OVERRIDE = "*"
DAY_SECONDS = 86400
DEFAULT_DAYS = 180
FORMAT_VERSION = 1
MOST_NUMBER = 2**63 - 1
PROJECT_FILE = "pyproject.toml"
MOST_PROJECT_BYTES = 2**20
_PURPOSE = b"gdpfed/1/signed app"
_KINDS: Mapping[str, str] = {
    "app": r"@[a-z0-9-]{1,100}/[a-z0-9-]{1,100}",
    "version": r"(0|[1-9][0-9]{0,8})(\.(0|[1-9][0-9]{0,8})){0,5}",
    "bundle": "[0-9a-f]{64}",
    "allowed_overrides": r"[\x21-\x7e][\x20-\x7e]*",
}

_NO_BUNDLE = (
    *(zipfile.BadZipFile, zlib.error, lzma.LZMAError, OSError, EOFError),
    *(RuntimeError, ValueError, KeyError, TypeError),
)
"""What damaged bundles raise; RuntimeError is of encrypted ones, and of forms that are not supported."""


class AppSignatureError(InputError):
    """Raised if an app bundle cannot be signed or a signature is not valid; the message names the remedy."""


@dataclass(frozen=True)
class AppStatement:
    """What the consortium signs about an app bundle: hash, version, expiry, and the key list's version.

    Attributes:
        app: Flower's name of it, as ``@gdpfed/gdpfed``.
        version: of the app, whole numbers between points.
        bundle: SHA-256 of the bundle, in hexadecimal.
        roster_number: of the roster that the app is for.
        signed_at: when it was signed, in seconds since 1970.
        expires_at: from when on no node begins a run of it, in seconds since 1970.
        allowed_overrides: which overrides a run of it may have, as the node's setting ``allowed-overrides``.

    Raises AppSignatureError: values that are none of these.
    """

    app: str
    version: str
    bundle: str
    roster_number: int
    signed_at: int
    expires_at: int
    allowed_overrides: str = ANY_OVERRIDE

    def __post_init__(self) -> None:
        for field in fields(self):
            value, kind = getattr(self, field.name), _KINDS.get(field.name)
            fits = (
                type(value) is int and 0 <= value <= MOST_NUMBER
                if kind is None
                else isinstance(value, str) and re.fullmatch(kind, value, re.ASCII)
            )
            if not fits:
                raise AppSignatureError(f"{value!r} is not a {field.name} of a signed app: sign it again")

    @property
    def release(self) -> tuple[int, ...]:
        """The app's version as numbers, for comparison."""
        return release_of(self.version)

    @property
    def content(self) -> bytes:
        """The bytes that are signed: a fixed prefix, then the statement as JSON with sorted keys."""
        return _PURPOSE + json.dumps(asdict(self), sort_keys=True, separators=(",", ":")).encode()

    def check(self, bundle: bytes, now: float | None = None) -> None:
        """Raise AppSignatureError if this statement is about another bundle, or if the statement has expired.

        `now`: seconds since 1970, the present unless given.
        """
        if sha256(bundle).hexdigest() != self.bundle:
            raise AppSignatureError(
                f"the bundle has SHA-256 {sha256(bundle).hexdigest()} and is not the one that was signed, "
                f"{self.bundle}: have it signed with: gdpfed identity sign-app"
            )
        if (time.time() if now is None else now) >= self.expires_at:
            raise AppSignatureError(
                f"the signature of version {self.version} has expired on {_date(self.expires_at)}: "
                "have the bundle signed again with: gdpfed identity sign-app"
            )

    def __str__(self) -> str:
        return (
            f"{self.app} version {self.version}, roster number {self.roster_number}, "
            f"signed on {_date(self.signed_at)}, expires on {_date(self.expires_at)}, "
            f"allowed overrides {self.allowed_overrides}"
        )


@dataclass(frozen=True)
class SignedApp:
    """The consortium's statement about an app bundle, with the signatures, as saved beside the bundle.

    `signature`: over the statement. `bundle_signature`: Flower's, over time and digest.
    """

    statement: AppStatement
    signature: bytes
    bundle_signature: bytes

    @classmethod
    def by(cls, consortium: Identity, statement: AppStatement) -> Self:
        """Sign a statement about an app bundle, and the bundle itself, with the consortium's key."""
        message = flower_message(statement)
        return cls(statement, consortium.sign(statement.content), consortium.sign(message))

    @classmethod
    def read(cls, data: bytes | str, consortium_key: bytes) -> Self:
        """Read the signature file of a bundle, as `to_json` wrote it, and check the signature.

        Raises AppSignatureError: damaged, of another form, or not signed by this consortium.
        """
        try:
            content = read_json(data)
            version, told = content.pop("format"), content.pop("statement")
            signatures = {name: bytes.fromhex(value) for name, value in content.items()}
            if version != FORMAT_VERSION or type(version) is not int:
                raise ValueError(f"its format is {version!r}, not {FORMAT_VERSION}")
            signed = cls(AppStatement(**told), **signatures)
        except WRONG_FORM as error:
            if isinstance(error, AppSignatureError):
                raise
            raise AppSignatureError(
                f"the signature of the app is damaged ({error}): ask the consortium for it again"
            ) from None
        pairs = (
            (signed.signature, signed.statement.content),
            (signed.bundle_signature, flower_message(signed.statement)),
        )
        if not all(is_signed(consortium_key, signature, message) for signature, message in pairs):
            raise AppSignatureError(
                f"the app is not signed by the consortium with key {consortium_key.hex()}: run a bundle "
                "that this consortium has signed with: gdpfed identity sign-app"
            )
        return signed

    def to_json(self) -> bytes:
        """Return the content of the signature file, as JSON."""
        content = {
            "format": FORMAT_VERSION,
            "statement": asdict(self.statement),
            "signature": self.signature.hex(),
            "bundle_signature": self.bundle_signature.hex(),
        }
        return (json.dumps(content, indent=1) + "\n").encode()

    def verifications(self, consortium_key: bytes) -> dict[str, str]:
        """Return the signatures that Flower stores with a bundle and sends to SuperNodes."""
        entry = {
            "signed_at": self.statement.signed_at,
            "signature": urlsafe_b64encode(self.bundle_signature).decode(),
            "signed_app": self.to_json().decode(),
        }
        return {"valid_license": "Valid", consortium_key.hex(): json.dumps(entry)}


def release_of(version: str) -> tuple[int, ...]:
    """Return an app's version as numbers, where 1.2 equals 1.2.0; raise ValueError for any other form."""
    numbers = [int(number) for number in version.split(".")]
    while len(numbers) > 1 and not numbers[-1]:
        numbers.pop()
    return tuple(numbers)


def signed_in(verifications: Mapping[str, str], consortium_key: bytes) -> SignedApp:
    """Return what this consortium has signed about an app; `verifications`: signatures stored with the app.

    Raises AppSignatureError: there is no signature, or none of this consortium.
    """
    if not verifications:
        raise AppSignatureError(
            "the app is not signed, and this node runs signed apps only: sign its bundle with: gdpfed "
            "identity sign-app, and submit it with: deploy.operate train --bundle"
        )
    try:
        entry = read_json(verifications[consortium_key.hex()])["signed_app"]
    except WRONG_FORM:
        entry = None
    if not isinstance(entry, str):
        raise AppSignatureError(
            f"the app is not signed by the consortium with key {consortium_key.hex()}: run a bundle that "
            "this consortium has signed with: gdpfed identity sign-app"
        )
    return SignedApp.read(entry, consortium_key)


def flower_message(statement: AppStatement) -> bytes:
    """Return the bytes that Flower signs for a bundle: 8 bytes of the time, big-endian, then the digest.

    These are 40 bytes, and all that begins with a purpose of ours is longer.
    """
    return statement.signed_at.to_bytes(8, "big") + bytes.fromhex(statement.bundle)


def sign_app(
    bundle: bytes,
    consortium: Identity,
    roster_number: int,
    *,
    days: float = DEFAULT_DAYS,
    allowed_overrides: str = ANY_OVERRIDE,
) -> SignedApp:
    """Sign an app bundle for one version of the key list (roster); the signature expires after ``days``.

    Raises AppSignatureError: it is not a bundle, or its version cannot be compared.
    """
    app, version = app_of(bundle)
    if not days > 0:
        raise AppSignatureError(f"--days {days:g} must be above 0: a signature is to hold for a while")
    now, digest = int(time.time()), sha256(bundle).hexdigest()
    until = now + int(min(days * DAY_SECONDS, MOST_NUMBER - now))
    statement = AppStatement(app, version, digest, roster_number, now, until, allowed_overrides)
    return SignedApp.by(consortium, statement)


def app_of(bundle: bytes) -> tuple[str, str]:
    """Return name and version of the app in a bundle.

    Raises AppSignatureError: it is not a bundle of ``flwr build``.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(bundle)) as files, files.open(PROJECT_FILE) as file:
            # No more is unpacked than it may have, whatever the bundle says of its size.
            text = file.read(MOST_PROJECT_BYTES + 1)
        if len(text) > MOST_PROJECT_BYTES:
            raise ValueError(f"its {PROJECT_FILE} has more than {MOST_PROJECT_BYTES:,} bytes")
        project: Mapping[str, Any] = tomllib.loads(text.decode())
        publisher = project["tool"]["flwr"]["app"]["publisher"]
        return f"@{publisher}/{project['project']['name']}", project["project"]["version"]
    except _NO_BUNDLE as error:
        raise AppSignatureError(
            f"it is not a bundle of an app ({words_of(error)}): make one with: flwr build"
        ) from None


def write_signature(bundle: Path, signed: SignedApp, mode: int) -> Path:
    """Write the signature of a bundle to a new file beside it; return its path.

    Raises IdentityError: the file exists, or cannot be written.
    """
    path = signature_path(bundle)
    write_new(path, signed.to_json(), mode)
    return path


def read_signed_bundle(bundle: Path, consortium_key: bytes) -> tuple[bytes, SignedApp]:
    """Read a bundle and the signature beside it, and check both.

    Raises:
        AppSignatureError: the signature is none of this consortium, of another bundle, or has expired.
        IdentityError: a file cannot be read.
    """
    content = read_file(bundle)
    signed = SignedApp.read(read_file(signature_path(bundle)), consortium_key)
    signed.statement.check(content)
    return content, signed


def signature_path(bundle: Path) -> Path:
    """Return the path of a bundle's signature file."""
    return bundle.with_name(f"{bundle.name}{SIGNATURE_SUFFIX}")


def read_file(path: Path) -> bytes:
    """Read the bytes of a bundle or of its signature file.

    Raises IdentityError: it cannot be read.
    """
    try:
        return path.read_bytes()
    except OSError as error:
        raise IdentityError(
            f"{path} cannot be read: {error.strerror}; make a bundle with flwr build, and sign it with: "
            "gdpfed identity sign-app"
        ) from None


def _date(seconds: int) -> str:
    """Write a time in UTC as text."""
    try:
        return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(seconds))
    except (OverflowError, ValueError, OSError):
        return f"second {seconds}"
