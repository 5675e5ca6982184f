"""Make the keys, certificates and secrets of every service, unless they exist; a service reads only its own.

    <root>/authority/            key and certificate of this host's authority; no service sees the key
    <root>/consortium/           the key that signs the roster of identities; no service sees it
    <root>/public/               what others may have: superlink-ca.crt, node-<i>.pub, node-<i>.identity,
                                 and of the consortium: roster.json, consortium.identity
    <root>/<service>/credentials the files that this service reads, and nobody else's
    <root>/<service>/<folder>    what the service writes, or the data that it reads

Whoever operates one node runs this for that node alone, with the server's ``superlink-ca.crt`` in
``public/``, and hands back its ``node-<i>.pub`` and, to the consortium, its ``node-<i>.identity``: no secret
leaves the host that it was made on. Who operates all parties is the consortium, too, and signs the roster.
"""

import os
import secrets
from collections.abc import Iterable, Sequence
from contextlib import suppress
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
from deploy.topology import (
    CA_FILE,
    CONSORTIUM_FILE,
    GATE,
    IDENTITY_FILE,
    LOOPBACK,
    NODE_KEY_FILE,
    PROXY_FILE,
    PUBLIC,
    ROSTER_FILE,
    SECRET_FILE,
    SERVER,
    SUPERLINK,
    SUPERLINK_CA_FILE,
    TLS_CERTIFICATE_FILE,
    TLS_KEY_FILE,
    Service,
    credentials_of,
)
from gdpfed.files import create_file, write_whole
from gdpfed.identities import (
    IdentityError,
    new_identity,
    public_key_of,
    read_identity,
    read_roster,
    signed_roster,
)

AUTHORITY, CONSORTIUM = "authority", "consortium"
AUTHORITY_KEY, AUTHORITY_CERTIFICATE = "ca.key", CA_FILE
CONSORTIUM_KEY = "consortium.key"
PUBLIC_KEY_SUFFIX = ".pub"
RENEWED_FILES = {
    "tls": (TLS_CERTIFICATE_FILE, TLS_KEY_FILE),
    "secret": (SECRET_FILE,),
    "node-key": (NODE_KEY_FILE,),
    "identity": (IDENTITY_FILE,),
}
RENEWABLE = (*RENEWED_FILES, CONSORTIUM, AUTHORITY)
SECRETS = (NODE_KEY_FILE, IDENTITY_FILE, SECRET_FILE, TLS_KEY_FILE)
SECRET_BYTES = 32


@dataclass(frozen=True)
class Store:
    """A directory with the keys, certificates and secrets of one host's services.

    `root`: where they lie. `owner`: user id that the services run as; None keeps the caller's.
    `signs_roster`: whether the consortium's key is here, as it is where one person operates all parties.
    """

    root: Path
    owner: int | None = None
    signs_roster: bool = True

    def provide(self, services: Sequence[Service], superlink_hosts: Sequence[str] = ()) -> None:
        """Make the missing credentials of ``services``; existing files stay.

        Args:
            services: of one or more parties that this host operates.
            superlink_hosts: names and addresses under which nodes reach the gate from elsewhere.

        Raises CredentialsError: a file cannot be written, or the server's certificate is not there.
        """
        try:
            self._provide(services, superlink_hosts)
        except OSError as error:
            raise CredentialsError(
                f"{error.filename} cannot be written: {error.strerror}; "
                "run as its owner, or name another --directory"
            ) from None

    def renew(self, kind: str, services: Sequence[Service]) -> None:
        """Rename credentials of one kind to ``<name>.old``, so that :meth:`provide` makes new ones.

        Args:
            kind: of ``RENEWABLE``.
            services: whose; an authority and a consortium are renewed for all services of this host.

        Raises CredentialsError: others than these services would be left without; a file cannot be moved.
        """
        self._refuse_some(kind, services)
        folders = [credentials_of(self.root, service.name) for service in services]
        old = [folder / file for folder in folders for file in RENEWED_FILES.get(kind, ())]
        if kind == CONSORTIUM:
            old = [self.root / CONSORTIUM / CONSORTIUM_KEY]
        if kind == AUTHORITY:
            old = [self.root / AUTHORITY / name for name in (AUTHORITY_KEY, AUTHORITY_CERTIFICATE)]
            old += [*self.root.glob(f"*/credentials/{CA_FILE}")]
            for name in RENEWED_FILES["tls"]:
                old += self.root.glob(f"*/credentials/{name}")
            if credentials_of(self.root, SUPERLINK).is_dir():
                old.append(self.root / PUBLIC / SUPERLINK_CA_FILE)
        try:
            for path in old:
                if path.exists():
                    path.replace(path.with_name(f"{path.name}.old"))
        except OSError as error:
            raise CredentialsError(
                f"{error.filename} cannot be moved: {error.strerror}; run as its owner"
            ) from None

    def _refuse_some(self, kind: str, services: Sequence[Service]) -> None:
        """Raise CredentialsError if credentials that all services share would be renewed for only some."""
        if kind == CONSORTIUM and not self.signs_roster:
            raise CredentialsError(
                f"--renew {CONSORTIUM} is for the operator of all parties, and this host has only some: "
                "leave --party out, or make the consortium's key with: gdpfed identity new"
            )
        there = {path.parent.name for path in self.root.glob("*/credentials")}
        others = sorted(there - {service.name for service in services})
        if kind == AUTHORITY and others:
            raise CredentialsError(
                f"--renew {AUTHORITY} is for all services of this host, and would leave {', '.join(others)} "
                "without certificates: leave --party out, or name every party of this host"
            )

    def _provide(self, services: Sequence[Service], superlink_hosts: Sequence[str]) -> None:
        self.root.mkdir(parents=True, exist_ok=True)
        authority = self._authority()
        self._directory(self.root / PUBLIC, mode=0o755)
        if any(service.party == SERVER for service in services):
            self._write(self.root / PUBLIC / SUPERLINK_CA_FILE, authority.certificate_pem, mode=0o644)
        secret = {party: self._secret(services, party) for party in {each.party for each in services}}
        for service in services:
            self._provide_service(service, authority, secret[service.party], superlink_hosts)
        if self.signs_roster:
            self._sign_roster({each.party for each in services if IDENTITY_FILE in each.credentials})
        for service in services:
            self._hand_roster(service)

    def _provide_service(
        self, service: Service, authority: Authority, secret: bytes, superlink_hosts: Sequence[str]
    ) -> None:
        """Make the folders and credentials of one service, except for those that the consortium issues."""
        files = credentials_of(self.root, service.name)
        self._directory(files.parent)
        self._directory(files)
        for folder in service.folders:
            path = self.root / (folder.of or service.name) / folder.name
            self._directory(path.parent)
            if folder.writable:
                self._directory(path)
            else:
                path.mkdir(exist_ok=True)
        if SECRET_FILE in service.credentials:
            self._write(files / SECRET_FILE, secret)
        if TLS_KEY_FILE in service.credentials:
            extra = superlink_hosts if service.name == GATE else ()
            self._server_certificate(authority, files, (service.name, "localhost", LOOPBACK, *extra))
        if NODE_KEY_FILE in service.credentials:
            self._node_key(files, service.party)
        if PROXY_FILE in service.credentials:
            self._proxy(files / PROXY_FILE)
        if IDENTITY_FILE in service.credentials:
            self._identity(files, service.party)
        if SUPERLINK_CA_FILE in service.credentials:
            self._replace(files / SUPERLINK_CA_FILE, self._superlink_ca(), mode=0o600)
        if CA_FILE in service.credentials:
            self._write(files / CA_FILE, authority.certificate_pem)

    def awaited(self, services: Sequence[Service]) -> list[str]:
        """Return how to get missing files of the consortium (all parties), as a list of at most one line."""
        public = self.root / PUBLIC
        missing = [name for name in (ROSTER_FILE, CONSORTIUM_FILE) if not (public / name).exists()]
        if not missing:
            return []
        own = sorted(each.party for each in services if IDENTITY_FILE in each.credentials)
        sent = "".join(f"send {public / identity_file(party)} to the consortium; " for party in own)
        return [f"{sent}put its {' and '.join(missing)} into {public}, and run this again"]

    def _authority(self) -> Authority:
        directory = self.root / AUTHORITY
        key, certificate = directory / AUTHORITY_KEY, directory / AUTHORITY_CERTIFICATE
        if key.exists():
            return Authority.from_pem(key.read_bytes(), certificate.read_bytes())
        authority = Authority.create(f"gdpfed authority {secrets.token_hex(4)}")
        directory.mkdir(mode=0o700, exist_ok=True)
        create_file(certificate, authority.certificate_pem)
        create_file(key, authority.key_pem)
        return authority

    def _secret(self, services: Iterable[Service], party: str) -> bytes:
        """Return the secret that a party's services share, or a new one if none of them has a secret yet."""
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

    def _node_key(self, files: Path, party: str) -> None:
        """Make the key of a node: ECDSA P-384 in OpenSSH's format, as Flower requires."""
        if (files / NODE_KEY_FILE).exists():
            return
        key = ec.generate_private_key(ec.SECP384R1())
        public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
        private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
        published = self.root / PUBLIC / f"{party}{PUBLIC_KEY_SUFFIX}"
        published.unlink(missing_ok=True)
        self._write(published, public + f" {party}\n".encode(), mode=0o644)
        self._write(files / NODE_KEY_FILE, private)

    def _proxy(self, path: Path) -> None:
        """Make an empty file for the address of a node's HTTP proxy; an existing file is kept."""
        self._write(path, b"")
        path.chmod(0o600)
        self._own(path)

    def _identity(self, files: Path, party: str) -> None:
        """Make the identity key by which other nodes recognise this node, and publish the public key.

        A key that another service of the node holds, as before it had a guard, is taken from there.
        """
        path = files / IDENTITY_FILE
        before = next(self.root.glob(f"{party}-*/credentials/{IDENTITY_FILE}"), None)
        if not path.exists() and before is not None:
            before.replace(path)
        elif not path.exists():
            new_identity(path)
            self._own(path)
        self.publish(
            identity_file(party), read_identity(path, self.owner).public_bytes().hex().encode() + b"\n"
        )

    def _sign_roster(self, parties: Iterable[str]) -> None:
        """Sign the list of these nodes' public keys (roster), unless it is signed already."""
        folder, public = self.root / CONSORTIUM, self.root / PUBLIC
        folder.mkdir(mode=0o700, exist_ok=True)
        path = folder / CONSORTIUM_KEY
        consortium = read_identity(path, self.owner) if path.exists() else new_identity(path)
        keys = {client_of(party): public_key_of(str(public / identity_file(party))) for party in parties}
        self.publish(CONSORTIUM_FILE, consortium.public_bytes().hex().encode() + b"\n")
        after, signed = -1, public / ROSTER_FILE
        # One that another consortium key has signed, or that is damaged, is signed anew.
        with suppress(IdentityError):
            before = read_roster(signed, consortium.public_bytes())
            if dict(before) == keys:
                return
            after = before.number
        self.publish(ROSTER_FILE, signed_roster(keys, consortium, after=after))

    def _hand_roster(self, service: Service) -> None:
        """Copy the consortium's newest list of public keys (roster) to a service, if there is one."""
        for name in (ROSTER_FILE, CONSORTIUM_FILE):
            published = self.root / PUBLIC / name
            if name in service.credentials and published.exists():
                path = credentials_of(self.root, service.name) / name
                self._replace(path, published.read_bytes(), mode=0o600)

    def publish(self, name: str, data: bytes) -> None:
        """Write a file to the public folder, if its content has changed."""
        self._replace(self.root / PUBLIC / name, data, mode=0o644)

    def _superlink_ca(self) -> bytes:
        path = self.root / PUBLIC / SUPERLINK_CA_FILE
        if not path.exists():
            raise CredentialsError(f"{path} is missing: get it from the server's operator, and put it there")
        return path.read_bytes()

    def _directory(self, path: Path, mode: int = 0o700) -> None:
        """Make a directory that belongs to the user of the services, even if Docker made it as root."""
        path.mkdir(exist_ok=True)
        path.chmod(mode)
        self._own(path)

    def _write(self, path: Path, data: bytes, *, mode: int = 0o600) -> None:
        if not path.exists():
            create_file(path, data, mode)
            self._own(path)

    def _replace(self, path: Path, data: bytes, *, mode: int) -> None:
        """Write a file if it is missing or its content has changed; readers never find it half written."""
        if not path.exists() or path.read_bytes() != data:
            write_whole(path, data, mode=mode)
            self._own(path)

    def _own(self, path: Path) -> None:
        if self.owner is not None:
            os.chown(path, self.owner, self.owner)


def identity_file(party: str) -> str:
    """Return the name of the file with a node's public identity key."""
    return f"{party}.identity"


def client_of(party: str) -> int:
    """Return a node's client number, which is part of the node's name."""
    return int(party.rpartition("-")[2])
