"""Make the keys, certificates and secrets of every service, once; each file is for one service only.

    <root>/authority/            key and certificate of this host's authority; no service sees the key
    <root>/public/               what others may have: superlink-ca.crt, node-<i>.pub
    <root>/<service>/credentials the files that this service reads, and nobody else's
    <root>/<service>/<folder>    what the service writes, or the data that it reads

Whoever operates one node runs this for that node alone, with the server's ``superlink-ca.crt`` in
``public/``, and hands back its ``node-<i>.pub``: no secret leaves the host that it was made on.
"""

import os
import secrets
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

from deploy.certificates import Authority, CredentialsError
from deploy.placements import LOOPBACK, credentials_of
from deploy.topology import (
    CA_FILE,
    IDENTITY_FILE,
    SECRET_FILE,
    SERVER,
    SUPERLINK,
    SUPERLINK_CA_FILE,
    TLS_CERTIFICATE_FILE,
    TLS_KEY_FILE,
    Service,
)

AUTHORITY, PUBLIC = "authority", "public"
AUTHORITY_KEY, AUTHORITY_CERTIFICATE = "ca.key", CA_FILE
SECRETS = (IDENTITY_FILE, SECRET_FILE, TLS_KEY_FILE)
SECRET_BYTES = 32


@dataclass(frozen=True)
class Store:
    """A directory with the credentials of one host.

    Attributes:
        root: where they lie.
        owner: user id that the services run as; None keeps the caller's.
    """

    root: Path
    owner: int | None = None

    def provide(self, services: Sequence[Service], superlink_hosts: Sequence[str] = ()) -> None:
        """Make the missing credentials of ``services``; existing files stay.

        Args:
            services: of one or more parties that this host operates.
            superlink_hosts: names and addresses under which nodes reach the SuperLink from elsewhere.

        Raises:
            CredentialsError: a file cannot be written, or the server's certificate is not there.
        """
        try:
            self._provide(services, superlink_hosts)
        except OSError as error:
            raise CredentialsError(
                f"{error.filename} cannot be written: {error.strerror}; "
                "run as its owner, or name another --directory"
            ) from None

    def _provide(self, services: Sequence[Service], superlink_hosts: Sequence[str]) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        authority = self._authority()
        self._directory(self.root / PUBLIC, mode=0o755)
        if any(service.party == SERVER for service in services):
            self._write(self.root / PUBLIC / SUPERLINK_CA_FILE, authority.certificate_pem, mode=0o644)
        secret = {party: self._secret(services, party) for party in {each.party for each in services}}
        for service in services:
            files = credentials_of(self.root, service.name)
            self._directory(files.parent)
            self._directory(files)
            for folder in service.folders:
                if folder.writable:
                    self._directory(files.parent / folder.name)
                else:
                    (files.parent / folder.name).mkdir(exist_ok=True)
            if SECRET_FILE in service.credentials:
                self._write(files / SECRET_FILE, secret[service.party])
            if TLS_KEY_FILE in service.credentials:
                extra = superlink_hosts if service.name == SUPERLINK else ()
                self._server_certificate(authority, files, (service.name, "localhost", LOOPBACK, *extra))
            if IDENTITY_FILE in service.credentials:
                self._identity(files, service.party)
            if SUPERLINK_CA_FILE in service.credentials:
                self._write(files / SUPERLINK_CA_FILE, self._superlink_ca())
            self._write(files / CA_FILE, authority.certificate_pem)

    def _authority(self) -> Authority:
        directory = self.root / AUTHORITY
        key, certificate = directory / AUTHORITY_KEY, directory / AUTHORITY_CERTIFICATE
        if key.exists():
            return Authority.from_pem(key.read_bytes(), certificate.read_bytes())
        authority = Authority.create(f"gdpfed authority {secrets.token_hex(4)}")
        directory.mkdir(mode=0o700, exist_ok=True)
        write_new(certificate, authority.certificate_pem)
        write_new(key, authority.key_pem)
        return authority

    def _secret(self, services: Iterable[Service], party: str) -> bytes:
        """Return the secret that a party's SuperExec shares with its SuperLink or SuperNode."""
        for service in services:
            path = credentials_of(self.root, service.name) / SECRET_FILE
            if service.party == party and path.exists():
                return path.read_bytes()
        return secrets.token_bytes(SECRET_BYTES)

    def _server_certificate(self, authority: Authority, files: Path, hosts: Sequence[str]) -> None:
        if (files / TLS_KEY_FILE).exists():
            return
        certificate, key = authority.issue(hosts)
        self._write(files / TLS_CERTIFICATE_FILE, certificate)
        self._write(files / TLS_KEY_FILE, key)

    def _identity(self, files: Path, party: str) -> None:
        """Make the key of a node: ECDSA P-384 in OpenSSH's format, as Flower wants it."""
        if (files / IDENTITY_FILE).exists():
            return
        key = ec.generate_private_key(ec.SECP384R1())
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        published = self.root / PUBLIC / f"{party}.pub"
        published.unlink(missing_ok=True)
        self._write(published, public + f" {party}\n".encode(), mode=0o644)
        self._write(files / IDENTITY_FILE, private)

    def _superlink_ca(self) -> bytes:
        path = self.root / PUBLIC / SUPERLINK_CA_FILE
        if not path.exists():
            raise CredentialsError(f"{path} is missing: get it from the server's operator, and put it there")
        return path.read_bytes()

    def _directory(self, path: Path, mode: int = 0o700) -> None:
        """Make a directory for the services' user, even if Docker has made it as root before."""
        path.mkdir(exist_ok=True)
        path.chmod(mode)
        self._own(path)

    def _write(self, path: Path, data: bytes, *, mode: int = 0o600) -> None:
        if not path.exists():
            write_new(path, data, mode=mode)
            self._own(path)

    def _own(self, path: Path) -> None:
        if self.owner is not None:
            os.chown(path, self.owner, self.owner)


def write_new(path: Path, data: bytes, *, mode: int = 0o600) -> None:
    """Write a new file, which has its mode from the first byte on."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
