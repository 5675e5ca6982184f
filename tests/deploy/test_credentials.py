"""Tests of credentials: valid, private to one service, and unchanged if the command runs a second time."""

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from deploy.certificates import Authority, CredentialsError
from deploy.credentials import Store
from deploy.federation import Federation
from deploy.init import main as init
from deploy.services import services
from deploy.topology import CONSORTIUM_FILE, IDENTITY_FILE, LEDGER, ROSTER_FILE, credentials_of
from gdpfed.identities import public_key_of, read_identity, read_roster

FEDERATION = Federation.of(6)
SERVICES = services(FEDERATION)


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    root = tmp_path_factory.mktemp("federation")
    Store(root).provide(SERVICES, ["fl.example.org", "192.0.2.7"])
    return root


def files_of(root):
    return {path.relative_to(root): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def roster_of(root):
    public = root / "public"
    return read_roster(public / ROSTER_FILE, public_key_of(str(public / CONSORTIUM_FILE)))


def certificate(path):
    return x509.load_pem_x509_certificate(path.read_bytes())


@pytest.mark.parametrize("service", SERVICES, ids=lambda service: service.name)
def test_a_service_has_exactly_the_files_that_it_names(root, service):
    files = credentials_of(root, service.name)
    assert {path.name for path in files.iterdir()} == set(service.credentials)
    assert files.stat().st_mode & 0o777 == 0o700
    assert {path.stat().st_mode & 0o777 for path in files.iterdir()} == {0o600}


def test_server_certificates_are_issued_for_the_names_that_are_used(root):
    authority = certificate(root / "public" / "superlink-ca.crt")
    for service in SERVICES:
        if "tls.crt" not in service.credentials:
            continue
        leaf = certificate(credentials_of(root, service.name) / "tls.crt")
        leaf.verify_directly_issued_by(authority)
        names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        extra = service.name == "gate"
        assert names.get_values_for_type(x509.DNSName) == [
            *(service.name, "localhost"),
            *(["fl.example.org"] if extra else []),
        ]
        assert names.get_values_for_type(x509.IPAddress) == [
            ip_address("127.0.0.1"),
            *([ip_address("192.0.2.7")] if extra else []),
        ]
        assert timedelta(days=396) < leaf.not_valid_after_utc - datetime.now(UTC) < timedelta(days=398)


def test_an_authority_can_issue_for_servers_only():
    authority = Authority.create("a")
    constraints = authority.certificate.extensions.get_extension_for_class(x509.BasicConstraints).value
    assert (constraints.ca, constraints.path_length) == (True, 0)
    leaf = x509.load_pem_x509_certificate(authority.issue(["host"])[0])
    assert not leaf.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    with pytest.raises(CredentialsError, match="at least one host"):
        authority.issue([])
    with pytest.raises(CredentialsError, match="does not belong to its certificate"):
        Authority.from_pem(authority.key_pem, Authority.create("b").certificate_pem)
    with pytest.raises(CredentialsError, match="are not PEM .*: see 'Rotating keys'"):
        Authority.from_pem(b"", authority.certificate_pem)


def test_node_keys_are_the_curve_that_flower_wants_and_all_different(root):
    public = set()
    for node in FEDERATION.nodes:
        data = (credentials_of(root, node.supernode) / "node.key").read_bytes()
        key = serialization.load_ssh_private_key(data, password=None)
        assert isinstance(key, ec.EllipticCurvePrivateKey)
        assert isinstance(key.curve, ec.SECP384R1)
        published = serialization.load_ssh_public_key((root / "public" / f"{node.name}.pub").read_bytes())
        assert published == key.public_key()
        public.add(key.private_numbers().private_value)
    assert len(public) == 6


def test_a_secret_is_shared_by_the_two_services_of_a_party_only(root):
    having = [service for service in SERVICES if "superexec.secret" in service.credentials]
    assert len(having) == 2 * 7
    secrets = {s.name: (credentials_of(root, s.name) / "superexec.secret").read_bytes() for s in having}
    for service in having:
        same = {name for name, secret in secrets.items() if secret == secrets[service.name]}
        assert same == {other.name for other in having if other.party == service.party}


def test_making_them_again_changes_nothing_and_a_new_node_only_adds(tmp_path):
    Store(tmp_path).provide(SERVICES)
    before = files_of(tmp_path)
    Store(tmp_path).provide(SERVICES)
    assert files_of(tmp_path) == before
    Store(tmp_path).provide(services(Federation.of(9)))
    after = files_of(tmp_path)
    assert {path.name for path in before if before[path] != after[path]} == {"roster.json"}
    assert set(roster_of(tmp_path)) == set(range(9))
    assert {path.parts[0] for path in after.keys() - before.keys()} == {
        "public",
        *(name for i in (6, 7, 8) for name in (f"supernode-{i}", f"node-{i}-superexec", f"node-{i}-guard")),
    }


def test_every_node_stands_in_the_roster_under_its_own_number(root):
    roster = roster_of(root)
    identities = {
        node.client_id: read_identity(credentials_of(root, node.guard) / IDENTITY_FILE)
        for node in FEDERATION.nodes
    }
    assert dict(roster) == {client: identity.public_bytes() for client, identity in identities.items()}
    for name in ("server-superexec", *(node.guard for node in FEDERATION.nodes)):
        own = credentials_of(root, name)
        key = public_key_of(str(own / CONSORTIUM_FILE))
        assert read_roster(own / ROSTER_FILE, key) == roster


def test_the_consortiums_key_is_given_to_no_service(root):
    path = root / "consortium" / "consortium.key"
    assert (path.parent.stat().st_mode & 0o777, path.stat().st_mode & 0o777) == (0o700, 0o600)
    secret = path.read_bytes()
    assert [each for each, data in files_of(root).items() if secret in data] == [path.relative_to(root)]


def test_a_new_identity_is_signed_into_the_roster(tmp_path):
    Store(tmp_path).provide(SERVICES)
    before, key = roster_of(tmp_path), credentials_of(tmp_path, "node-2-guard") / IDENTITY_FILE
    key.unlink()
    Store(tmp_path).provide(SERVICES)
    after = roster_of(tmp_path)
    assert [client for client in before if before[client] != after[client]] == [2]


def test_the_identity_goes_with_who_holds_it_and_the_ledger_stays_where_it_is(tmp_path):
    """A node that starts or stops using a guard keeps its entry in the roster and its ledger folder."""

    def sees(service, name):
        return name in [folder.name for folder in service.folders]

    unguarded = services(replace(FEDERATION, unguarded=True))
    Store(tmp_path).provide(unguarded)
    before = roster_of(tmp_path)
    for kind in (SERVICES, unguarded):
        Store(tmp_path).provide(kind)
        held = {str(path.relative_to(tmp_path)) for path in tmp_path.glob(f"node-1-*/*/{IDENTITY_FILE}")}
        (holder,) = [each.name for each in kind if each.party == "node-1" and sees(each, LEDGER)]
        assert held == {f"{holder}/credentials/{IDENTITY_FILE}"}
        assert roster_of(tmp_path) == before
        assert {path.parent.name for path in tmp_path.glob("node-1-*/ledger")} == {"node-1-superexec"}


def test_a_node_of_another_host_waits_for_the_consortiums_roster(tmp_path, capsys, root):
    """A node on another host signs no roster itself, but installs the one that the consortium has sent."""
    public, words = tmp_path / "public", ["--directory", str(tmp_path), "--party", "node-4"]
    public.mkdir()
    (public / "superlink-ca.crt").write_text("the server's")
    assert init(words) == 0
    assert (
        f"send {public}/node-4.identity to the consortium; put its roster.json and consortium.identity into"
        in capsys.readouterr().out
    )
    own = credentials_of(tmp_path, "node-4-guard")
    assert not (own / ROSTER_FILE).exists()
    for name in (ROSTER_FILE, CONSORTIUM_FILE):
        (public / name).write_bytes((root / "public" / name).read_bytes())
    assert init(words) == 0
    assert "consortium" not in capsys.readouterr().out
    assert (own / ROSTER_FILE).read_bytes() == (root / "public" / ROSTER_FILE).read_bytes()


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        (
            ["--party", "node-2", "--renew", "node-key"],
            {"public/node-2.pub", "supernode-2/credentials/node.key"},
        ),
        (
            ["--party", "node-2", "--renew", "tls"],
            {f"supernode-2/credentials/tls.{kind}" for kind in ("crt", "key")},
        ),
        (
            ["--party", "server", "--renew", "secret"],
            {f"{name}/credentials/superexec.secret" for name in ("superlink", "server-superexec")},
        ),
    ],
)
def test_credentials_are_renewed_by_party_and_kind(tmp_path, words, changed):
    directory = ["--directory", str(tmp_path)]
    assert init(directory) == 0
    before = files_of(tmp_path)
    assert init([*directory, *words]) == 0
    after = files_of(tmp_path)
    assert {str(path) for path in before if after[path] != before[path]} == changed
    kept = {str(path) for path in after.keys() - before.keys()}
    assert kept <= {f"{path}.old" for path in changed}
    assert all(after[Path(path)] == before[Path(path.removesuffix(".old"))] for path in kept)
    assert any(path.endswith(("key.old", "secret.old")) for path in kept)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("consortium", "is for the operator of all parties, and this host has only some: leave --party out"),
        ("authority", "would leave .*supernode-5.* without certificates: leave --party out"),
    ],
)
def test_what_all_parties_share_is_not_renewed_for_one(tmp_path, kind, words, capsys):
    """Renewing a key that all parties share is refused for one party alone, and changes no file."""
    directory = ["--directory", str(tmp_path)]
    assert init(directory) == 0
    before = files_of(tmp_path)
    assert init([*directory, "--party", "node-1", "--renew", kind]) == 2
    assert re.search(words, capsys.readouterr().err)
    assert files_of(tmp_path) == before


def test_a_renewed_consortium_signs_the_roster_anew_and_keeps_its_old_key(tmp_path):
    directory = ["--directory", str(tmp_path)]
    assert init(directory) == 0
    before = files_of(tmp_path)
    assert init([*directory, "--renew", "consortium"]) == 0
    after = files_of(tmp_path)
    key, public = Path("consortium/consortium.key"), tmp_path / "public"
    assert after[key.with_name("consortium.key.old")] == before[key] != after[key]
    assert read_roster(public / ROSTER_FILE, public_key_of(str(public / CONSORTIUM_FILE)))
    assert init(directory) == 0
    assert files_of(tmp_path) == after


def test_a_renewed_authority_signs_every_certificate_anew_and_changes_nothing_else(tmp_path):
    Store(tmp_path).provide(SERVICES)
    before = files_of(tmp_path)
    Store(tmp_path).renew("authority", SERVICES)
    Store(tmp_path).provide(SERVICES)
    after = files_of(tmp_path)
    assert {path.name for path in before if after[path] != before[path]} == {
        *("ca.key", "ca.crt", "superlink-ca.crt", "tls.crt", "tls.key"),
    }
    authority = (tmp_path / "authority" / "ca.crt").read_bytes()
    for service in SERVICES:
        for name in {"ca.crt", "superlink-ca.crt"} & set(service.credentials):
            assert after[credentials_of(tmp_path, service.name).relative_to(tmp_path) / name] == authority


def test_one_node_needs_no_more_than_the_servers_certificate(tmp_path, capsys):
    words = ["--directory", str(tmp_path), "--party", "node-4"]
    assert init(words) == 2
    assert capsys.readouterr().err == (
        f"deploy: {tmp_path}/public/superlink-ca.crt is missing: get it from the server's operator, "
        "and put it there [credentials]\n"
    )
    (tmp_path / "public" / "superlink-ca.crt").write_text("the server's")
    assert init(words) == 0
    assert {path.name for path in tmp_path.iterdir()} == {
        *("authority", "public", "supernode-4", "node-4-superexec", "node-4-guard"),
    }
    assert (credentials_of(tmp_path, "supernode-4") / "superlink-ca.crt").read_text() == "the server's"


def test_an_unknown_party_is_refused(tmp_path, capsys):
    assert init(["--directory", str(tmp_path), "--party", "node-6"]) == 2
    assert "--party node-6 is not known: use node-0, " in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_cannot_be_written_is_one_line(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CredentialsError, match="file cannot be written: .*; run as its owner"):
        Store(tmp_path / "file").provide(SERVICES)
