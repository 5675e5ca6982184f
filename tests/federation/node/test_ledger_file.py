"""Tests of a node's ledger file: its lock, several processes, and damaged, lost or old files."""

import json
import os
import time

import pytest

from gdpfed.child_process import fork_context
from gdpfed.federation.node import node_file
from gdpfed.federation.node.ledger_file import LedgerError, locked_ledger
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.events import SampledGaussian
from gdpfed.privacy.mechanisms.sampled.terms import SumTerms

TERMS = SumTerms(
    run="one",
    group=0,
    epsilon=3.0,
    delta=1e-5,
    accountant="pld",
    charges=(
        Charge(
            event=SampledGaussian(
                sampling="poisson",
                sampling_rate=0.2,
                group_size=10,
                noise_stddev=4.0,
                clipping_norm=2.0,
            ),
            count=200,
        ),
    ),
    sums_hidden=True,
)


def begin(path):
    with locked_ledger(path) as file:
        file.ledger.begin(TERMS, epsilons=[9.0], delta=1e-5)
        file.save()


def charge(path, rounds):
    for index in rounds:
        with locked_ledger(path) as file:
            file.ledger.charge("one", index)
            file.save()


def test_what_is_saved_is_there_again_and_the_owners_alone(tmp_path):
    path = tmp_path / "ledger.json"
    begin(path)
    charge(path, [3, 1])
    with locked_ledger(path) as file:
        assert file.ledger.runs[0].rounds == [3, 1]
    assert path.stat().st_mode & 0o077 == 0


def test_what_is_not_saved_is_not_there(tmp_path):
    path = tmp_path / "ledger.json"
    begin(path)
    with locked_ledger(path) as file:
        file.ledger.charge("one", 0)
    with locked_ledger(path) as file:
        assert file.ledger.runs[0].rounds == []


def test_two_processes_lose_no_entry(tmp_path):
    path = tmp_path / "ledger.json"
    begin(path)
    context = fork_context()
    workers = [context.Process(target=charge, args=(path, range(k, 40, 2))) for k in (0, 1)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert [worker.exitcode for worker in workers] == [0, 0]
    with locked_ledger(path) as file:
        assert sorted(file.ledger.runs[0].rounds) == list(range(40))


def test_a_ledger_in_other_hands_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr(node_file, "LOCK_SECONDS", 0.1)
    path = tmp_path / "ledger.json"
    with locked_ledger(path):
        started = time.monotonic()
        with pytest.raises(LedgerError, match="has been locked by another process for 0.1 seconds"):
            begin(path)
        assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[]",
        lambda text: text.replace('\\"count\\": 200', '\\"count\\": 2'),
        lambda text: json.dumps({"ledger": {"version": 1, "runs": []}, "sha256": "0" * 64}),
    ],
)
def test_a_damaged_ledger_is_refused_and_left_as_it_is(tmp_path, damage):
    path = tmp_path / "ledger.json"
    begin(path)
    path.write_text(damage(path.read_text()))
    before = path.read_text()
    with pytest.raises(LedgerError, match="is damaged .*: put its newest undamaged copy back"):
        begin(path)
    assert path.read_text() == before


def test_a_lost_ledger_is_not_begun_anew(tmp_path):
    path = tmp_path / "ledger.json"
    begin(path)
    path.unlink()
    with pytest.raises(LedgerError, match="is gone, and with it what was spent"):
        begin(path)
    assert not path.exists()


def test_a_ledger_that_is_lost_without_its_lock_was_marked_when_it_was_there_last(tmp_path, caplog):
    path = tmp_path / "ledger.json"
    begin(path)
    (tmp_path / "ledger.json.lock").unlink()
    charge(path, [0])
    path.unlink()
    with pytest.raises(LedgerError, match="is gone"):
        begin(path)
    (tmp_path / "ledger.json.lock").unlink()
    caplog.clear()
    begin(path)
    assert "is new: this client has spent nothing yet" in caplog.text


def test_a_copy_that_is_put_back_forgets_and_is_refused(tmp_path):
    path = tmp_path / "ledger.json"
    begin(path)
    copy = path.read_bytes()
    charge(path, [0])
    last = path.read_bytes()
    path.write_bytes(copy)
    with pytest.raises(LedgerError, match="is not the one that was written last, .* lower the budget"):
        charge(path, [1])
    assert path.read_bytes() == copy
    path.write_bytes(last)
    charge(path, [1])
    with locked_ledger(path) as file:
        assert file.ledger.runs[0].rounds == [0, 1]


def test_a_process_that_ends_between_mark_and_ledger_loses_nothing(tmp_path, monkeypatch):
    path = tmp_path / "ledger.json"
    begin(path)
    before = path.read_bytes()
    with monkeypatch.context() as broken:
        broken.setattr(type(path), "replace", lambda *_: (_ for _ in ()).throw(OSError(5, "killed")))
        with pytest.raises(LedgerError, match="killed"):
            charge(path, [0])
    assert path.read_bytes() == before
    charge(path, [0])
    copy = path.read_bytes()
    charge(path, [1])
    path.write_bytes(copy)
    with pytest.raises(LedgerError, match="is not the one"):
        charge(path, [2])


def test_a_damaged_lock_is_no_clean_slate(tmp_path):
    path = tmp_path / "ledger.json"
    begin(path)
    (tmp_path / "ledger.json.lock").write_text("[]")
    with pytest.raises(LedgerError, match="has a damaged lock"):
        begin(path)


@pytest.mark.parametrize("name", ["ledger.json", "ledger.json.lock"])
@pytest.mark.parametrize("kind", ["link", "hard link", "pipe", "folder"])
def test_a_ledger_is_one_file_with_one_name(tmp_path, name, kind):
    """A node refuses a ledger, or a lock beside it, that is a link, a hard link, a pipe or a folder."""
    real = tmp_path / "real.json"
    begin(real)
    before = real.read_bytes()
    there = tmp_path / name
    {
        "link": lambda: there.symlink_to(real),
        "hard link": lambda: os.link(real, there),
        "pipe": lambda: os.mkfifo(there),
        "folder": there.mkdir,
    }[kind]()
    with pytest.raises(LedgerError, match="not a regular file|Is a directory|existing directory"):
        begin(tmp_path / "ledger.json")
    assert real.read_bytes() == before


def test_a_draft_is_not_written_through_a_link(tmp_path):
    path, other = tmp_path / "ledger.json", tmp_path / "other"
    begin(path)
    other.write_text("precious")
    (tmp_path / ".ledger.json.tmp").symlink_to(other)
    charge(path, [0])
    assert other.read_text() == "precious"
    assert not path.is_symlink()


def test_a_directory_that_is_not_there_is_not_made(tmp_path):
    with pytest.raises(LedgerError, match="name a file in an existing directory"):
        begin(tmp_path / "not mounted" / "ledger.json")
    assert not (tmp_path / "not mounted").exists()


def test_a_disk_that_refuses_keeps_the_old_ledger(tmp_path, monkeypatch):
    path = tmp_path / "ledger.json"
    begin(path)
    before = path.read_text()

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(LedgerError, match="cannot be written: No space left on device"):
        charge(path, [0])
    assert path.read_text() == before
    assert sorted(each.name for each in tmp_path.iterdir()) == ["ledger.json", "ledger.json.lock"]


def test_a_lock_that_was_written_in_part_stands_for_no_ledger(tmp_path, monkeypatch):
    """A full disk takes the first bytes of a write: once there is space again, the new ledger begins."""
    path, write = tmp_path / "ledger.json", os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda handle, data, at: write(handle, data[:100], at))
    with pytest.raises(LedgerError, match="cannot be written: No space left on device"):
        begin(path)
    monkeypatch.undo()
    begin(path)
    charge(path, [0])
