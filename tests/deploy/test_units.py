"""Tests of units for systemd: which files each service may see, and whether systemd accepts them."""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from deploy.units import main

NODE, SERVER = "node-1", "server"
FEW = ("--nodes", "3", "--budgets", "8", "--superlink", "fl.example.org")


def written(folder: Path, party: str, *words: str) -> dict[str, str]:
    """Write the systemd units of a party; return their texts by file name."""
    assert main([*FEW, "--party", party, "--into", str(folder), *words]) == 0
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_a_unit_sees_its_own_credentials_and_folders_and_no_others(tmp_path):
    files = written(tmp_path, NODE, "--epsilon", "2.5", "--data", "/srv/study")
    assert set(files) == {
        "gdpfed-supernode-1.service",
        "gdpfed-node-1-superexec.service",
        "gdpfed-node-1-guard.service",
        "gdpfed.target",
        "gdpfed-node-1.conf",
    }
    services = ("supernode-1", "node-1-superexec", "node-1-guard")
    node, app, guard = (files[f"gdpfed-{name}.service"] for name in services)
    assert "epsilon=2.5 max-epsilon-against-server=2.5" in guard
    assert "--superlink fl.example.org:8000 " in node
    assert 'identity-file=\\"/run/credentials/gdpfed-node-1-guard.service/identity.key\\"' in guard
    for credential in ("node.key", "proxy.url"):
        assert f"LoadCredential={credential}:/srv/gdpfed/supernode-1/credentials/{credential}" in node
    assert "identity.key" not in node + app
    assert "node.key" not in app + guard
    assert "BindReadOnlyPaths=/srv/study:/srv/gdpfed/node-1-superexec/data" in guard
    assert "BindPaths=/srv/gdpfed/node-1-superexec/ledger" in guard
    assert "PrivateNetwork=yes" in guard
    # The party's group may read the records, for the guard; the app and the SuperNode do not see them.
    assert ["InaccessiblePaths=-/srv/study\n" in text for text in (node, app, guard)] == [True, True, False]
    assert "IPAddressDeny=any\nIPAddressAllow=localhost\n" in app
    assert "IPAddress" not in node + guard
    assert re.findall("^Bind.*", node + app, re.MULTILINE) == [
        "BindPaths=/srv/gdpfed/supernode-1/seen",
        "BindReadOnlyPaths=/srv/gdpfed/node-1-guard/guard",
    ]
    assert "ExecStart=/opt/gdpfed/.venv/bin/python -m deploy.supernode --consortium /run/credentials/" in node
    assert "--seen /srv/gdpfed/supernode-1/seen --proxy /run/credentials/" in node
    for service, text in zip(services, (node, app, guard), strict=True):
        loaded = re.findall(r"^LoadCredential=\S+?:(\S+)", text, re.MULTILINE)
        assert all(path.startswith(f"/srv/gdpfed/{service}/") for path in loaded)
        assert "Group=gdpfed-node-1\n" in text
        assert f"User=gdpfed-{service}\n" in text
        assert "TemporaryFileSystem=/srv/gdpfed:ro\n" in text
        confined = {"ProtectSystem=strict", "PrivateTmp=yes", "ProtectProc=invisible"}
        assert {*confined, "SystemCallFilter=@system-service"} <= set(text.splitlines())
        assert f"u gdpfed-{service} -" in files["gdpfed-node-1.conf"]


@pytest.mark.parametrize("option", ["--data", "--directory", "--checkout"])
@pytest.mark.parametrize("path", ["/srv/my study", "/srv/100%", "/srv/a:b"])
def test_a_folder_that_a_unit_would_read_otherwise_is_refused(tmp_path, option, path, capsys):
    with pytest.raises(SystemExit):
        main([*FEW, "--party", NODE, "--into", str(tmp_path / "units"), option, path])
    assert f"'{path}' has a space or a mark that systemd or a shell reads otherwise: make a link without" in (
        capsys.readouterr().err
    )
    assert not (tmp_path / "units").exists()


def test_a_folder_may_have_letters_of_any_language(tmp_path):
    guard = written(tmp_path, NODE, "--data", "/srv/für")["gdpfed-node-1-guard.service"]
    assert "BindReadOnlyPaths=/srv/für:/srv/gdpfed/node-1-superexec/data" in guard


@pytest.mark.skipif(os.getuid() != 0, reason="only root gives files away")
def test_root_hands_over_a_folder_once_and_leaves_what_the_service_puts_into_it(tmp_path):
    """Root gives a folder to a service only once, so a file that is linked into it later keeps its owner."""
    guard = written(tmp_path / "units", "node-1")["gdpfed-node-1-guard.service"]
    prepared = re.findall(r"^ExecStartPre=\+(/usr/bin/find (\S+) .*)$", guard, re.MULTILINE)
    assert [path for _, path in prepared] == re.findall("^BindPaths=([^:\n]+)", guard, re.MULTILINE)
    folder = tmp_path / "ledger"
    (folder / "inner").mkdir(parents=True)
    command, path = prepared[0]
    command = command.replace(path, str(folder)).replace("gdpfed-node-1-guard:gdpfed-node-1", "65534:65534")
    words = command.replace("gdpfed-node-1-guard", "65534").split()
    subprocess.run(words, check=True)
    assert {each.stat().st_uid for each in (folder, folder / "inner")} == {65534}
    other = tmp_path / "other"
    other.touch()
    (folder / "link").hardlink_to(other)
    subprocess.run(words, check=True)
    assert other.stat().st_uid == 0


def test_of_a_server_the_gate_alone_is_for_other_hosts(tmp_path):
    files = written(tmp_path, SERVER)
    assert "--host 127.0.0.1 --port 8001" in files["gdpfed-superlink.service"]
    assert "--superlink 127.0.0.1:8001 --host 0.0.0.0 --port 8000" in files["gdpfed-gate.service"]
    signed = (
        "--signature /srv/gdpfed/public/app.fab.signature "
        "--consortium /srv/gdpfed/public/consortium.identity "
        "--database /srv/gdpfed/superlink/state/superlink.db"
    )
    assert f"--runs /srv/gdpfed/server-superexec/runs {signed} -- privacy.num_groups=1" in files["federation"]
    unsigned = written(tmp_path / "unsigned", SERVER, "--unsigned-apps")["federation"]
    assert "--runs /srv/gdpfed/server-superexec/runs -- privacy.num_groups=1" in unsigned
    subprocess.run(["/bin/sh", "-n", str(tmp_path / "federation")], check=True)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_finds_no_fault_in_them(tmp_path):
    checkout = tmp_path / "checkout"
    programs = checkout / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("flower-superlink", "flower-supernode", "flower-superexec", "python"):
        (programs / name).symlink_to("/bin/true")
    for party in (SERVER, NODE):
        written(tmp_path / "units", party, "--checkout", str(checkout))
    units = [str(path) for path in (tmp_path / "units").iterdir() if path.suffix in (".service", ".target")]
    verify = ["systemd-analyze", "verify", *units]
    done = subprocess.run(verify, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_bad_options_are_one_line(tmp_path, capsys):
    into = ("--into", str(tmp_path))
    for words, said in (
        (("--party", "node-7"), "--party node-7 is not known: use node-0, node-1, node-2 or server"),
        (
            ("--party", SERVER, "--epsilon", "2"),
            "--epsilon 2 belongs to one node: name the node, as in --party node-3",
        ),
    ):
        assert main([*FEW, *words, *into]) == 2
        assert said in capsys.readouterr().err
