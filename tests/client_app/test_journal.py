"""Tests of a node's journal: it records begun and refused runs, and has a maximum size."""

from dataclasses import replace

import pytest
from flwr.app import ConfigRecord, RecordDict

from gdpfed.clients.messages import CLIENT_RECORD, JOIN, REFUSAL, REFUSAL_RECORD, ROUND, RUN, UNIT
from gdpfed.errors import RunError
from gdpfed.federation.node import journal
from gdpfed.federation.node.journal import BEGUN, JournalEntry, heard_at, note, read_journal
from gdpfed.federation.node.node_settings import NodeSettings
from testing.local_grid import ask, make_context, refusals
from testing.small_runs import grid_of_owners, run

ENTRY = JournalEntry(1.0, "mask", "a run", "1", "protocol", "said")


def own(folder, **settings):
    settings = {key.replace("_", "-"): value for key, value in settings.items()}
    return {"epsilon": 1.0, "ledger": str(folder / "ledger.json"), **settings}


def join(context):
    return ask(f"query.{JOIN}", RecordDict({CLIENT_RECORD: ConfigRecord({UNIT: "client"})}), context)


def test_what_is_begun_and_refused_is_written_with_the_words_that_the_server_read(tmp_path):
    """A node's journal lists the run that began, and the refused run with the reason sent to the server."""
    grid = grid_of_owners(tmp_path, [1.1] * 4)
    small = ["dataset.num_clients=4", "run.num_rounds=1", "privacy.sampling_rate=1", "privacy.budgets=[1.0]"]
    run(tmp_path / "first", small, grid=grid)
    with pytest.raises(RunError, match="does not fit"):
        run(tmp_path / "second", small, grid=grid)
    begun, refused = read_journal(tmp_path / "0.json")
    assert (begun.cause, refused.cause, refused.asked) == (BEGUN, "budget", "offer")
    assert (begun.flower_run, len({begun.run, refused.run})) == ("1", 2)
    assert refused.reason == refusals(grid)[0] == "this run does not fit this client's own budget"


def test_of_data_that_cannot_be_used_no_more_is_written_than_is_sent(tmp_path):
    context = make_context(0, own(tmp_path, data=str(tmp_path / "4711.npz")))
    said = join(context)[REFUSAL_RECORD]["reason"]
    (line,) = read_journal(tmp_path / "ledger.json")
    assert (line.cause, line.reason) == (journal.DATA, said)
    assert "4711" not in (tmp_path / "ledger.json.journal").read_text()


def test_a_refused_stage_names_the_run_of_its_message(tmp_path):
    context = make_context(0, own(tmp_path))
    content = RecordDict({"plain": ConfigRecord({"data": b"", RUN: "a\nrun", ROUND: 0})})
    said = ask("train.plain", content, context)["plain"][REFUSAL]
    (line,) = read_journal(tmp_path / "ledger.json")
    assert (line.asked, line.run, line.cause, line.reason) == ("plain", "a run", "protocol", said)
    assert heard_at(tmp_path / "ledger.json") is None  # Only those who are drawn are asked for stages.
    join(context)
    assert heard_at(tmp_path / "ledger.json") is not None


def test_the_journal_is_bounded_and_keeps_the_newest(tmp_path, monkeypatch):
    monkeypatch.setattr(journal, "MOST_BYTES", 1000)
    for number in range(100):
        note(NodeSettings(own(tmp_path)), replace(ENTRY, time=float(number)))
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 2 * 1200
    times = [entry.time for entry in read_journal(tmp_path / "ledger.json")]
    assert times == [float(number) for number in range(100 - len(times), 100)]
    assert len(times) >= 8


def test_a_journal_that_cannot_be_written_keeps_no_node_from_its_answer(tmp_path):
    (tmp_path / "ledger.json.journal").mkdir()
    (tmp_path / "ledger.json.heard").symlink_to(tmp_path / "elsewhere")
    answer = join(make_context(0, own(tmp_path, data=str(tmp_path / "none.npz"))))
    assert "data cannot be used" in str(answer[REFUSAL_RECORD]["reason"])
    assert join(make_context(0, own(tmp_path)))[CLIENT_RECORD]["client_id"] == 0
    assert not (tmp_path / "elsewhere").exists()
    note(NodeSettings({}), ENTRY)  # A node that keeps neither ledger nor sessions has no journal.


def test_a_damaged_line_is_left_out(tmp_path):
    note(NodeSettings(own(tmp_path)), ENTRY)
    with (tmp_path / "ledger.json.journal").open("a") as file:
        file.write('{"time": 1}\nno line\n')
    note(NodeSettings(own(tmp_path)), ENTRY)
    assert read_journal(tmp_path / "ledger.json") == [ENTRY, ENTRY]
