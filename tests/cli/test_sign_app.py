"""Tests of ``gdpfed identity sign-app``: Flower's own check accepts a correct signature, and no other."""

import io
import json
import zipfile
from hashlib import sha256

import pytest
from flwr.supercore.fab import Fab
from flwr.supernode.start_client_internal import _verify_fab

from gdpfed.files import PUBLIC_MODE
from gdpfed.identities import signed_roster
from gdpfed.signed_apps import (
    DAY_SECONDS,
    AppSignatureError,
    AppStatement,
    SignedApp,
    read_signed_bundle,
    sign_app,
    signed_in,
    write_signature,
)
from testing.known_identities import identity_of
from testing.signed_apps import bundle_of, trusted
from tests.cli.test_identity import refused, said

CONSORTIUM, OTHER = identity_of(90), identity_of(91)
KEY = CONSORTIUM.public_bytes()
ROSTER = 7


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, identity in (("consortium", CONSORTIUM), ("other", OTHER)):
        (tmp_path / f"{name}.key").write_bytes(identity.to_pem())
        (tmp_path / f"{name}.key").chmod(0o600)
    roster = signed_roster({0: identity_of(0).public_bytes()}, CONSORTIUM, ROSTER)
    (tmp_path / "roster.json").write_bytes(roster)
    (tmp_path / "app.fab").write_bytes(bundle_of("1.2.3"))
    return tmp_path


def test_flower_takes_the_signature_and_every_field_of_the_statement_is_signed(folder, capsys):
    words = ["sign-app", "app.fab", "--key", "consortium.key", "--roster", "roster.json"]
    out = said(capsys, *words, "--days", "30", "--allowed-overrides", "run.* method=gdpfed")
    assert out.startswith("app.fab.signature: @gdpfed/gdpfed version 1.2.3, roster number 7, signed on ")
    assert out.endswith(", allowed overrides run.* method=gdpfed\n")
    assert said(capsys, "verify-app", "app.fab", "--consortium", KEY.hex()).endswith(out.partition(": ")[2])
    bundle, signed = read_signed_bundle(folder / "app.fab", KEY)
    assert signed.statement.expires_at - signed.statement.signed_at == 30 * DAY_SECONDS
    verifications = signed.verifications(KEY)
    assert _verify_fab(Fab("", bundle, verifications), trusted(KEY))
    assert signed_in(verifications, KEY) == signed
    assert not _verify_fab(Fab("", bundle + b"\0", verifications), trusted(KEY))
    assert not _verify_fab(Fab("", bundle, verifications), trusted(OTHER.public_bytes()))
    assert "app.fab.signature exists and is kept" in refused(capsys, *words)
    content = json.loads(signed.to_json())
    for name, value in content["statement"].items():
        changed = value + 1 if isinstance(value, int) else value[:-1] + ("1" if value[-1] != "1" else "2")
        told = {**content, "statement": {**content["statement"], name: changed}}
        with pytest.raises(AppSignatureError, match="is not signed by the consortium"):
            SignedApp.read(json.dumps(told), KEY)


def test_a_bundle_with_one_byte_more_another_signer_and_an_old_signature_are_refused(folder, capsys):
    signed = sign_app(bundle_of("1.2.3"), CONSORTIUM, ROSTER)
    write_signature(folder / "app.fab", signed, PUBLIC_MODE)
    check = ["verify-app", "app.fab", "--consortium"]
    assert "not signed by the consortium with key" in refused(capsys, *check, OTHER.public_bytes().hex())
    with (folder / "app.fab").open("ab") as file:
        file.write(b"\0")
    assert "is not the one that was signed" in refused(capsys, *check, KEY.hex())
    with pytest.raises(AppSignatureError, match=r"version 1\.2\.3 has expired on \d{4}-\d\d-\d\d"):
        signed.statement.check(bundle_of("1.2.3"), now=signed.statement.expires_at)
    (folder / "app.fab.signature").write_text("{}")
    assert "the signature of the app is damaged" in refused(capsys, *check, KEY.hex())
    (folder / "app.fab.signature").unlink()
    assert "app.fab.signature cannot be read" in refused(capsys, *check, KEY.hex())


def test_the_key_must_be_that_of_the_roster_and_the_file_a_bundle(folder, capsys):
    words = ["sign-app", "app.fab", "--roster", "roster.json", "--key"]
    assert "cannot be used as a roster" in refused(capsys, *words, "other.key")
    (folder / "app.fab").write_text("no bundle")
    assert "it is not a bundle of an app" in refused(capsys, *words, "consortium.key")
    (folder / "app.fab").write_bytes(bundle_of("1.0rc1"))
    assert "'1.0rc1' is not a version of a signed app" in refused(capsys, *words, "consortium.key")


def changed_bundle(*changes):
    """Return a bundle whose headers or packed bytes have other values at these places."""
    data = bytearray(zipped("[project]\n" + "name = 'gdpfed'\n" * 50))
    for sign, at, value in changes:
        data[data.index(sign) + at] = value
    return bytes(data)


def zipped(project):
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as bundle:
        bundle.writestr("pyproject.toml", project)
    return file.getvalue()


HEADER, ENTRY = b"PK\x03\x04", b"PK\x01\x02"


@pytest.mark.parametrize(
    ("bundle", "words"),
    [
        (changed_bundle((HEADER, 30 + len("pyproject.toml"), 255)), "Error -3 while decompressing"),
        (changed_bundle((ENTRY, 6, 99)), "zip file version 9.9"),
        (changed_bundle((ENTRY, 10, 77)), "compression method is not supported"),
        (changed_bundle((HEADER, 6, 1), (ENTRY, 8, 1)), "is encrypted"),
        (changed_bundle((HEADER, 8, 12), (ENTRY, 10, 12)), "Invalid data stream"),
        (zipped("#" * (2**20 + 1)), "its pyproject.toml has more than 1,048,576 bytes"),
    ],
)
def test_a_damaged_bundle_is_refused_in_one_line(bundle, words):
    with pytest.raises(AppSignatureError, match=f"^it is not a bundle of an app .*{words}.*: make one with"):
        sign_app(bundle, CONSORTIUM, ROSTER)


@pytest.mark.parametrize(
    "verifications", [{}, {"valid_license": "Valid"}, {"valid_license": "Valid", KEY.hex(): "x"}]
)
def test_what_a_superlink_brings_without_a_signature_is_refused(verifications):
    with pytest.raises(AppSignatureError, match="not signed"):
        signed_in(verifications, KEY)


def test_versions_are_compared_as_numbers():
    def release(version):
        return AppStatement("@a/b", version, sha256(b"").hexdigest(), 1, 1, 2).release

    assert release("1.10.0") > release("1.9.9") > release("1.9") == release("1.9.0")
    with pytest.raises(AppSignatureError, match="is not a version"):
        release("1.09")
