"""The HTTP proxy, if any, through which a node's Flower SuperNode reaches its server; named in one file.

Flower's SuperNode speaks HTTP over TLS, by httpx. A proxy gets ``CONNECT HOST:PORT`` of the gate and passes
bytes on, so TLS and the node's signatures are between SuperNode and gate as without one. Credentials go to
the proxy as HTTP's *basic* scheme (RFC 7617), in clear on the way to it. They are in no command line and in
no environment that a process was started with: the SuperNode reads them itself.
"""

import re
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from deploy.certificates import CredentialsError
from gdpfed.files import read_regular

FORM = "http://USER:PASSWORD@HOST:PORT, or http://HOST:PORT"
ESCAPES = "in user name and password a mark such as @ : / ? # % is written by its code, %40 for @"
_VARIABLE = re.compile(r"\w+_proxy", re.IGNORECASE)
_HOST = re.compile(r"[A-Za-z0-9.-]+|\[[0-9A-Fa-f:.]+\]")
_WORDS = re.compile(r"(?:[A-Za-z0-9._~!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*")


@dataclass(frozen=True)
class Proxy:
    """An HTTP proxy through which a node reaches its server: address, user name and password.

    Attributes:
        address: host and port, which may be shown.
        url: with user name and password, which may not.
        has_credentials: whether it has these.
    """

    address: str
    url: str = field(repr=False)
    has_credentials: bool


def proxy_of(text: str, where: str) -> Proxy | None:
    """Return the proxy that a file's text names; None if the text is empty or only comments.

    `where`: the file. Raises CredentialsError: it names none. The line shows nothing that may be a password.
    """
    lines = [line.strip() for line in text.splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    if not lines:
        return None
    if len(lines) > 1:
        raise CredentialsError(f"{where} has {len(lines)} lines: write one, {FORM}")
    try:
        url = urlsplit(lines[0])
        host, port = url.hostname or "", url.port
        # User name and password, in which every character that has a meaning in a URL is escaped.
        words, at, _ = url.netloc.rpartition("@")
        user, _, password = words.partition(":")
        if not (_WORDS.fullmatch(user) and _WORDS.fullmatch(password)) or (at and not user):
            raise ValueError
        for word in (user, password):
            unquote(word, errors="strict")
    except ValueError:
        raise CredentialsError(f"{where} holds no address of a proxy: write {FORM}; {ESCAPES}") from None
    if url.scheme != "http":
        # What stands before the colon of HOST:PORT may be a user's name.
        scheme = url.scheme if url.scheme in ("https", "socks4", "socks5", "socks5h") else "no scheme"
        raise CredentialsError(
            f"{where} names a proxy with {scheme}: the SuperNode only supports HTTP proxies; write {FORM}"
        )
    bracketed = f"[{host}]" if ":" in host else host
    if url.path not in ("", "/") or url.query or url.fragment or not _HOST.fullmatch(bracketed):
        raise CredentialsError(f"{where} holds more than an address of a proxy: write {FORM}; {ESCAPES}")
    if port is None:
        raise CredentialsError(f"{where} names a proxy without its port: write {FORM}")
    address = f"{bracketed}:{port}"
    return Proxy(address, f"http://{words}{at}{address}", bool(at))


def read_proxy(file: Path) -> Proxy | None:
    """Read the proxy from a file; None if the file names no proxy.

    Raises CredentialsError: it cannot be read, or names none.
    """
    try:
        text = read_regular(file).decode("utf-8")
    except UnicodeDecodeError:
        raise CredentialsError(f"{file} is not a text: write {FORM}; {ESCAPES}") from None
    except OSError as error:
        raise CredentialsError(
            f"{file} cannot be read: {error.strerror}; run python -m deploy.init again, which makes it and "
            "gives it to the SuperNode's user; an empty file means no proxy"
        ) from None
    return proxy_of(text, str(file))


def leave_by(proxy: Proxy | None, environment: MutableMapping[str, str]) -> None:
    """Make this process use this proxy, or no proxy, and ignore proxy environment variables.

    Such a variable may come from the shell, or from the settings of Docker's client, and would send the
    SuperNode another way than its operator's file says.
    """
    for name in [name for name in environment if _VARIABLE.fullmatch(name)]:
        del environment[name]
    if proxy is not None:
        environment["HTTPS_PROXY"] = proxy.url
