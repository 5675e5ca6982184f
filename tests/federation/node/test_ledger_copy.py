"""A ledger in two places: what is put back in one of them is noticed, and nothing is forgotten."""

from collections import Counter

import pytest

from gdpfed.cli import main
from gdpfed.federation.node.journal import ACCEPTED, read_journal
from gdpfed.federation.node.ledger_file import COPY_FILE, LedgerError, larger_spend, locked_ledger
from gdpfed.federation.node.node_file import NodeFile
from tests.federation.node.test_ledger_file import TERMS

REMEDY = "is not what its copy in .* is: .* gdpfed node accept-ledger .*ledger.json --copy "


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
    with pytest.raises(LedgerError, match=REMEDY if lost != "damaged" else "is not what|is damaged"):
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


def test_a_ledger_from_before_gets_its_copy_at_the_first_use(places):
    charge(places[:1], 0)
    assert rounds_in(places) == [0]
    assert (places[1] / COPY_FILE).read_bytes() == places[0].read_bytes()


def test_neither_of_two_is_no_ledger(places, capsys):
    assert main(["node", "accept-ledger", str(places[0]), "--copy", str(places[1])]) == 2
    assert "neither ledger=" in capsys.readouterr().err
    assert list(places[0].parent.glob("*.lock")) == []


def test_the_larger_spend_has_every_update_of_both():
    """A round may have several updates, and a step more of one of them counts."""

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
