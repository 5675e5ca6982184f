"""The file with the keys of open secure-aggregation sessions, so that a client answers no stage twice.

Flower sends a reply before it stores the Context. A ClientApp that is killed in between has answered, and
still has the Context from before: it could answer the same stage once more, and differently, which gives a
vector away. So what lies in the Context is sealed under a key of this file, and before an answer leaves the
key is replaced, or deleted where the session has ended. The Context from before cannot be read any more.

Shares of noise that are still to be taken back lie in it as well (`gdpfed.federation.node.noise_shares`).
"""

import json
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from logging import ERROR
from pathlib import Path
from typing import Any

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from gdpfed.clients.keyed_noise import NoiseShare
from gdpfed.federation import log
from gdpfed.federation.node.node_config import NodeConfigError
from gdpfed.federation.node.node_file import NodeFile
from gdpfed.json_files import WRONG_FORM, read_json
from secagg import LocalProtocolError

KEY_BYTES, HANDLE_BYTES = 32, 16
MOST_SESSIONS = 256
# Every key seals once, so the nonce need not differ.
NONCE = bytes(12)


class SessionFileError(NodeConfigError):
    """Raised if the file of session keys cannot be used; the client then answers no stage of a secure sum."""


@dataclass(frozen=True)
class OpenSession:
    """One open session of secure aggregation in the file of session keys.

    Attributes:
        key: hexadecimal, of what was sealed last.
        stage: what the session has done.
        opened: when it began, in seconds since 1970.
    """

    key: str
    stage: str
    opened: float


@dataclass
class _Contents:
    """The recent entries of the session file: open sessions, and noise that later rounds may subtract."""

    sessions: dict[str, OpenSession] = field(default_factory=dict)
    shares: list[NoiseShare] = field(default_factory=list)


@dataclass(frozen=True)
class SessionFile:
    """The file in which a node stores the keys of its open sessions, and noise that it may subtract later.

    Attributes:
        path: of the file.
        seconds: how long a session may stay open; older ones are deleted whenever the file is written.
    """

    path: Path
    seconds: float

    def seal(
        self, data: bytes, stage: str, bound: bytes, before: tuple[str, bytes] | None
    ) -> tuple[str, bytes]:
        """Encrypt a session under a new key, and write the key to disk; return a handle and the ciphertext.

        Args:
            data: the session.
            stage: what it has done.
            bound: what only this session is for; the same is needed to open it.
            before: what was sealed of this session before. It cannot be opened from now on.

        Returns:
            The session's handle, and what is sealed.

        Raises:
            LocalProtocolError: what was sealed before is not the last of its session.
            SessionFileError: the file cannot be used.
        """
        key = os.urandom(KEY_BYTES)
        handle, opened = os.urandom(HANDLE_BYTES).hex(), time.time()
        with self._changed() as contents:
            sessions = contents.sessions
            if before is not None:
                handle, opened = before[0], _last(sessions, before, bound)[1].opened
            sessions[handle] = OpenSession(key.hex(), stage, opened)
        return handle, AESGCM(key).encrypt(NONCE, data, _associated(handle, bound))

    def open(self, sealed: tuple[str, bytes], bound: bytes) -> bytes:
        """Decrypt the latest stored content of a session.

        Raises:
            LocalProtocolError: it was answered with already, has ended, is too old, or is of something else.
            SessionFileError: the file cannot be used.
        """
        with self._file.locked():
            return _last(self._load().sessions, sealed, bound)[0]

    def delete(self, handle: str) -> bool:
        """Delete a session's key from disk, so that the session can never be opened again.

        Returns whether it was there still: of two processes that end one session, one gets True.

        Raises:
            SessionFileError: the file cannot be used.
        """
        with self._changed() as contents:
            return contents.sessions.pop(handle, None) is not None

    def shares(self) -> list[NoiseShare]:
        """Return the node's stored noise, of which later rounds may subtract parts."""
        with self._file.locked():
            return self._load().shares

    @contextmanager
    def changed_shares(self) -> Iterator[list[NoiseShare]]:
        """Yield the node's stored noise as a list, and write the changed list to disk afterwards."""
        with self._changed() as contents:
            yield contents.shares

    @property
    def _file(self) -> NodeFile:
        return NodeFile(self.path, "session-file", SessionFileError)

    @contextmanager
    def _changed(self) -> Iterator[_Contents]:
        with self._file.locked():
            contents = self._load()
            yield contents
            sessions = contents.sessions
            newest = sorted(sessions, key=lambda handle: sessions[handle].opened)[-MOST_SESSIONS:]
            body: dict[str, Any] = {"sessions": {handle: asdict(sessions[handle]) for handle in newest}}
            if contents.shares:
                body["shares"] = [share.to_dict() for share in contents.shares[-MOST_SESSIONS:]]
            self._file.write((json.dumps(body, indent=1) + "\n").encode())

    def _load(self) -> _Contents:
        """Read the session file's recent entries; there are none if the file is missing or damaged."""
        try:
            data = self._file.read()
            body = {"sessions": {}} if data is None else read_json(data)
            found = {handle: OpenSession(**entry) for handle, entry in body["sessions"].items()}
            shares = [NoiseShare.from_dict(each) for each in body.get("shares", [])]
            oldest = time.time() - self.seconds
            return _Contents(
                {handle: each for handle, each in found.items() if each.opened >= oldest},
                [share for share in shares if share.opened >= oldest],
            )
        except WRONG_FORM as error:
            log(ERROR, "%s is damaged, and begun anew: %s", self._file.name, type(error).__name__)
            return _Contents()


def _last(
    sessions: Mapping[str, OpenSession], sealed: tuple[str, bytes], bound: bytes
) -> tuple[bytes, OpenSession]:
    handle, data = sealed
    session = sessions.get(handle)
    if session is None:
        raise LocalProtocolError(
            "the session of this client has ended or is too old: it joins again next round"
        )
    try:
        return AESGCM(bytes.fromhex(session.key)).decrypt(NONCE, data, _associated(handle, bound)), session
    except (InvalidTag, ValueError, TypeError):
        raise LocalProtocolError(
            "this client's session has gone on since, or is another one: each stage is answered once"
        ) from None


def _associated(handle: str, bound: bytes) -> bytes:
    return handle.encode() + b"/" + bound
