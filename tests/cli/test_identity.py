"""Tests of ``gdpfed identity``: keys that only their owner can read, and rosters with a valid signature."""

import os
import re

import pytest

from gdpfed.cli import main
from testing.known_identities import identity_of


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def said(capsys, *words):
    """Run ``gdpfed identity`` with these words, check that it succeeds, and return its output."""
    assert main(["identity", *words]) == 0
    return capsys.readouterr().out


def refused(capsys, *words):
    """Run ``gdpfed identity`` with these words, check that it fails, and return its one-line error."""
    assert main(["identity", *words]) == 2
    captured = capsys.readouterr()
    assert (captured.out, captured.err.count("\n")) == ("", 1)
    return captured.err


def test_a_consortium_signs_a_roster_and_everybody_can_check_it(folder, capsys):
    keys = [said(capsys, "new", f"{i}.key").strip() for i in range(3)]
    consortium = said(capsys, "new", "consortium.key").strip()
    assert said(capsys, "show", "1.key").strip() == keys[1]
    (folder / "2.identity").write_text(keys[2] + "\n")
    (folder / "list.txt").write_text(f"# the second\n\n1={keys[1]}\n")
    words = ["roster", "roster.json", "--key", "consortium.key"]
    out = said(capsys, *words, "--clients", f"0={keys[0]}", "2=2.identity", "--from", "list.txt")
    assert out == f"roster.json has 3 clients, signed by consortium {consortium}\n"
    out = said(capsys, "verify", "roster.json", "--consortium", consortium)
    assert re.fullmatch(r"number \d{10,}, signed on \d{4}-\d\d-\d\d", out.splitlines()[1])
    assert out.splitlines()[2:] == [f"{i}={key}" for i, key in enumerate(keys)]
    assert "is not signed by the consortium" in refused(
        capsys, "verify", "roster.json", "--consortium", keys[0]
    )
    assert "roster.json exists and is kept" in refused(capsys, *words, "--clients", f"0={keys[0]}")
    # Its clock was ahead.
    ahead = ["roster", "ahead.json", *words[2:], "--clients", f"0={keys[0]}", "--number", "99999999999"]
    said(capsys, *ahead)
    said(capsys, "roster", "next.json", *words[2:], "--clients", f"0={keys[0]}", "--after", "ahead.json")
    assert "number 100000000000," in said(capsys, "verify", "next.json", "--consortium", consortium)


def test_an_identity_is_its_owners_alone_and_never_overwritten(folder, capsys):
    old = os.umask(0)
    try:
        public = said(capsys, "new", "0.key")
    finally:
        os.umask(old)
    path = folder / "0.key"
    assert path.stat().st_mode & 0o777 == 0o600
    assert "0.key exists and is kept: name a new file" in refused(capsys, "new", "0.key")
    assert said(capsys, "show", "0.key") == public
    path.chmod(0o640)
    assert (
        refused(capsys, "show", "0.key")
        == "gdpfed: 0.key is open to others (mode 640): chmod 600 0.key [identity]\n"
    )


@pytest.mark.parametrize(
    ("words", "refusal"),
    [
        (["show", "nowhere"], "nowhere cannot be read: No such file"),
        (["show", "list.txt"], "list.txt is not an identity: this is not an Ed25519 private key"),
        (["new", "nowhere/0.key"], "nowhere/0.key cannot be written: No such file"),
        (["roster", "r.json", "--key", "c.key"], "the roster has no client"),
        (["roster", "r.json", "--key", "c.key", "--clients", "0"], "'0' is not ID=KEY"),
        (["roster", "r.json", "--key", "c.key", "--clients", "0=abc"], "abc is neither a public key"),
        (["roster", "r.json", "--key", "c.key", "--from", "nowhere"], "--from nowhere cannot be read"),
        (["roster", "r.json", "--key", "c.key", "--from", "list.txt"], "client 1 is named twice"),
        (["roster", "r.json", "--key", "c.key", "--from", "same.txt"], "clients 1 and 2 have one key"),
        (
            ["verify", "list.txt", "--consortium", "00" * 32],
            "list.txt cannot be used as a roster: it is not JSON",
        ),
        (["verify", "nowhere", "--consortium", "00" * 32], "nowhere cannot be read"),
    ],
)
def test_bad_input_is_one_line_that_says_what_to_do(folder, capsys, words, refusal):
    key = identity_of(1).public_bytes().hex()
    (folder / "list.txt").write_text(f"1={key}\n1={key}\n")
    (folder / "same.txt").write_text(f"1={key}\n2={key}\n")
    (folder / "list.txt").chmod(0o600)
    said(capsys, "new", "c.key")
    assert refused(capsys, *words).startswith(f"gdpfed: {refusal}") or refusal in refused(capsys, *words)
    assert not (folder / "r.json").exists()
