"""Tests of a ledger with a copy in a second place: old versions are noticed, and no charge is lost."""

import json
from collections import Counter
from dataclasses import replace

import pytest

from gdpfed.cli import main
from gdpfed.federation.node.journal import ACCEPTED, read_journal
from gdpfed.federation.node.ledger_file import (
    COPY_FILE,
    LedgerError,
    accept_ledger,
    larger_spend,
    locked_ledger,
)
from gdpfed.federation.node.node_file import NodeFile
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.correlated_noise import CorrelatedGaussian, densest_turns
from gdpfed.privacy.ledgers.client import ClientLedger
from gdpfed.privacy.mechanisms.scheduled.terms import ScheduledTerms
from tests.federation.node.test_ledger_file import TERMS

REMEDY = "differs from its copy in .*: .* gdpfed node accept-ledger .*ledger.json --copy "


@pytest.fixture
def places(tmp_path):
    (tmp_path / "state").mkdir()
    return tmp_path / "ledger.json", tmp_path / "state"


def charge(places, *rounds):
    with locked_ledger(*places) as file:
        if not file.ledger.runs:
            file.ledger.begin(TERMS, epsilons=[9.0], delta=1e-5)
        for index in rounds:
            file.ledger.charge("one", index)
        file.save()


def rounds_in(places):
    with locked_ledger(*places) as file:
        return file.ledger.runs[0].rounds


def kept(path):
    return {each: each.read_bytes() for each in path.parent.glob(f"{path.name}*")}


def put_back(files):
    for path, data in files.items():
        path.write_bytes(data)


def test_a_ledger_that_is_put_back_with_its_lock_is_refused_until_its_operator_accepts(places, capsys):
    charge(places, 0)
    old = kept(places[0])
    charge(places, 1, 2)
    put_back(old)
    assert rounds_in(places[:1]) == [0]  # Without its copy nobody sees it.
    for _ in range(2):
        with pytest.raises(LedgerError, match=REMEDY):
            charge(places, 3)
    assert main(["node", "accept-ledger", str(places[0]), "--copy", str(places[1])]) == 0
    assert "goes on from 1 runs with 3 updates" in capsys.readouterr().out
    assert sorted(rounds_in(places)) == [0, 1, 2]
    (entry,) = read_journal(places[0])
    assert (entry.asked, entry.cause) == ("accept-ledger", ACCEPTED)
    charge(places, 3)
    assert len(rounds_in(places)) == 4


@pytest.mark.parametrize("lost", ["copy", "ledger", "folder", "damaged"])
def test_whatever_is_old_gone_or_damaged_the_larger_spend_stays(places, lost):
    copy = places[1] / COPY_FILE
    charge(places, 0)
    old = copy.read_bytes()
    charge(places, 1)
    if lost == "copy":
        copy.write_bytes(old)
    elif lost in ("ledger", "folder"):
        for path in kept(places[0]) if lost == "folder" else places[:1]:
            path.unlink()
    else:
        places[0].write_text("{}")
    with pytest.raises(LedgerError, match=REMEDY if lost != "damaged" else "differs from|is damaged"):
        rounds_in(places)
    assert main(["node", "accept-ledger", str(places[0]), "--copy", str(places[1])]) == 0
    assert sorted(rounds_in(places)) == [0, 1]


@pytest.mark.parametrize("lost", ["damaged", "gone"])
def test_what_was_spent_is_not_forgotten_where_the_newest_is_in_neither_place(places, lost, capsys):
    charge(places, 0)
    old = (places[1] / COPY_FILE).read_bytes()
    charge(places, 1, 2)
    (places[1] / COPY_FILE).write_bytes(old)
    if lost == "damaged":
        places[0].write_text("{}")
    else:
        places[0].unlink()
    words = ["node", "accept-ledger", str(places[0]), "--copy", str(places[1])]
    assert main(words) == 2
    assert "are both older than what was written last: put its newest copy back" in capsys.readouterr().err
    # Its operator may go on nevertheless, and lowers the budget.
    places[0].with_name(f"{places[0].name}.lock").unlink()
    assert main(words) == 0
    assert rounds_in(places) == [0]


def test_a_write_that_breaks_off_between_the_two_counts(places, monkeypatch):
    charge(places, 0)
    write = NodeFile.write

    def breaks_off(file, data):
        if file.path == places[0]:
            raise KeyboardInterrupt
        write(file, data)

    monkeypatch.setattr(NodeFile, "write", breaks_off)
    with pytest.raises(KeyboardInterrupt):
        charge(places, 1)
    monkeypatch.undo()
    assert rounds_in(places) == [0, 1]
    assert rounds_in(places) == [0, 1]


@pytest.mark.parametrize("fails", ["no folder", "the copy", "the ledger"])
def test_a_first_write_that_fails_locks_no_node_out(places, monkeypatch, fails):
    """Nothing was ever spent then, and the mark in the lock is that of a ledger without runs."""
    write = NodeFile.write

    def refused(file, data):
        if (file.path == places[0]) == (fails == "the ledger"):
            raise LedgerError("the disk is full")
        write(file, data)

    if fails == "no folder":
        places[1].rmdir()
    else:
        monkeypatch.setattr(NodeFile, "write", refused)
    with pytest.raises(LedgerError, match="the disk is full|ledger-copy=.* cannot be written"):
        charge(places, 0)
    monkeypatch.undo()
    places[1].mkdir(exist_ok=True)
    charge(places, 0)
    assert rounds_in(places) == [0]
    places[0].unlink()
    with pytest.raises(LedgerError, match="differs from its copy"):
        charge(places, 1)


@pytest.mark.parametrize("opened", ["at once", "after it was opened with a lock of before"])
def test_an_empty_folder_in_place_of_the_copy_is_refused_until_its_operator_accepts(places, opened):
    """A node refuses an empty folder in place of the copy; it may be the mount point of a missing disk."""
    charge(places, 0)
    if opened != "at once":
        lock = places[0].with_name(f"{places[0].name}.lock")
        lock.write_text(json.dumps({"ledger": json.loads(lock.read_text())["ledger"]}))
        assert rounds_in(places) == [0]
    old = kept(places[0])
    charge(places, 1, 2)
    copy = (places[1] / COPY_FILE).rename(places[0].with_name("unmounted"))
    put_back(old)
    for _ in range(2):
        with pytest.raises(LedgerError, match="had a copy, and .*state holds none: mount its disk, or put"):
            rounds_in(places)
    assert list(places[1].glob("*.copy")) == []
    copy.rename(places[1] / COPY_FILE)
    with pytest.raises(LedgerError, match=REMEDY):
        rounds_in(places)
    (places[1] / COPY_FILE).unlink()
    assert main(["node", "accept-ledger", str(places[0]), "--copy", str(places[1])]) == 0
    assert rounds_in(places) == [0]
    assert (places[1] / COPY_FILE).read_bytes() == places[0].read_bytes()


def test_a_ledger_that_was_written_without_a_copy_may_have_a_new_one(places):
    charge(places, 0)
    charge(places[:1], 1)
    (places[1] / COPY_FILE).unlink()
    assert rounds_in(places) == [0, 1]


def test_a_ledger_from_before_gets_its_copy_at_the_first_use(places):
    charge(places[:1], 0)
    assert rounds_in(places) == [0]
    assert (places[1] / COPY_FILE).read_bytes() == places[0].read_bytes()


@pytest.mark.parametrize("free_first", [True, False])
def test_the_terms_that_were_paid_for_stay_and_not_those_that_cost_nothing(tmp_path, free_first):
    """A merge of two ledgers that hold different terms of a run keeps the terms that were charged."""
    paths = (tmp_path / "ledger.json", tmp_path / "state")
    paths[1].mkdir()

    def begun(run, noise):
        with locked_ledger(*paths) as file:
            file.ledger.begin(of_turns(run, noise), epsilons=[9.0], delta=1e-5)
            file.ledger.forget_free(1)
            file.save()

    def taken(*turns):
        with locked_ledger(*paths) as file:
            for turn in turns:
                file.ledger.charge("one", turn)
            file.save()
            return file.ledger.epsilon(1e-5)

    begun("one", 1000.0)
    old = paths[0].read_bytes()
    begun("another", 1000.0)
    begun("one", 3.5)
    spent = taken(0, 10)
    (paths[0] if free_first else paths[1] / COPY_FILE).write_bytes(old)
    merged = accept_ledger(*paths)
    assert merged.epsilon(1e-5) == spent > 1.0
    assert merged.terms("one") == of_turns("one", 3.5)


def of_turns(run, noise, separation=10, **changes):
    event = CorrelatedGaussian(
        noise_stddev=noise,
        clipping_norm=1.0,
        num_rounds=2 * separation,
        turns=densest_turns(2, separation, 2 * separation),
        taps=(),
    )
    terms = ScheduledTerms(
        run=run,
        group=0,
        epsilon=8.0,
        delta=1e-5,
        accountant="pld",
        charges=(Charge(event=event, count=1),),
        sums_hidden=True,
        most_turns=2,
        separation=separation,
    )
    return replace(terms, **changes)


def body_with(terms, *turns):
    ledger = ClientLedger()
    ledger.begin(terms, epsilons=[9.0], delta=1e-5)
    for turn in turns:
        ledger.charge(terms.run, turn)
    return ledger.to_dict()


def test_two_terms_of_one_run_that_were_both_paid_for_are_not_merged():
    bodies = [body_with(of_turns("one", noise), 0) for noise in (1000.0, 3.5)]
    with pytest.raises(LedgerError, match="run one has other terms in .* and a cost under both: put"):
        larger_spend(bodies)


@pytest.mark.parametrize("order", [1, -1])
def test_a_run_that_was_charged_from_two_rounds_on_counts_from_the_earlier(order):
    bodies = [body_with(of_turns("one", 3.5, first_round=4), 15), body_with(of_turns("one", 3.5), 2)]
    (run,) = ClientLedger.from_dict(larger_spend(bodies[::order])).runs
    assert (run.terms.first_round, sorted(run.rounds)) == (0, [2, 15])


def test_neither_of_two_is_no_ledger(places, capsys):
    assert main(["node", "accept-ledger", str(places[0]), "--copy", str(places[1])]) == 2
    assert "neither ledger=" in capsys.readouterr().err
    assert list(places[0].parent.glob("*.lock")) == []


def test_a_file_or_nothing_in_place_of_the_folder_of_the_copy_is_named(places, capsys):
    charge(places, 0)
    for given in (places[1] / COPY_FILE, places[1] / "none"):
        assert main(["node", "accept-ledger", str(places[0]), "--copy", str(given)]) == 2
        said = f"gdpfed: {given} is not a folder: name that of {COPY_FILE}, or make it"
        assert said in capsys.readouterr().err


def test_the_larger_spend_has_every_update_of_both():
    """A merge of ledgers keeps the larger number of updates in a round, and the larger numbers of steps."""

    def body(*updates):
        taken = {"rounds": [index for index, _ in updates], "steps": [steps for _, steps in updates]}
        return {"version": 1, "runs": [{"terms": {"run": "one"}, **taken}]}

    both = larger_spend(
        [body((3, 2), (1, 5), (1, 1)), body((1, 2), (1, 2), (2, 0), (1, 1)), {"version": 1, "runs": []}]
    )
    (run,) = both["runs"]
    assert Counter(zip(run["rounds"], run["steps"], strict=True)) == {
        (3, 2): 1,
        (2, 0): 1,
        (1, 5): 1,
        (1, 2): 1,
        (1, 1): 1,
    }


def test_two_ledgers_that_break_the_terms_together_are_refused_with_the_way_on(places):
    """Each was gone on with from one backup, and has had the two turns that the run allows."""
    terms = of_turns("one", 5.0, separation=4, epsilon=3.0)
    with locked_ledger(*places) as file:
        file.ledger.begin(terms, epsilons=[9.0], delta=1e-5)
        file.save()
    before = kept(places[0]) | kept(places[1] / COPY_FILE)
    charge(places, 0, 4)
    other = (places[1] / COPY_FILE).read_bytes()
    put_back(before)
    charge(places, 1, 5)
    newest = places[0].read_bytes()
    (places[1] / COPY_FILE).write_bytes(other)
    with pytest.raises(
        LedgerError, match="each spent what the other lacks, .* lower the budget by what that run cost"
    ):
        accept_ledger(*places)
    (places[1] / COPY_FILE).write_bytes(newest)
    assert rounds_in(places) == [1, 5]
