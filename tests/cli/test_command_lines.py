"""Tests of command lines: a mistyped word is answered in one line, and settings can be read from a file."""

import pytest

from conf.load import load
from gdpfed.cli import main
from gdpfed.cli.settings_file import written_out
from gdpfed.errors import ConfigError


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["pln"], "command pln is not known; did you mean plan? [input]"),
        (["wxyz"], "command wxyz is not known; 'gdpfed --help' lists all [input]"),
        (["plan", "--detials"], "gdpfed plan has no option --detials; did you mean --details? [input]"),
        (
            ["plan", "--run.seed=1"],
            "gdpfed plan has no option --run.seed: a setting has no dashes, write run.seed=1 [input]",
        ),
        (
            ["identity", "new", "--worce", "key"],
            "gdpfed identity new has no option --worce; 'gdpfed",
        ),
        (["identity", "nw"], "gdpfed identity: argument ACTION: invalid choice: 'nw'"),
        (
            ["report"],
            "gdpfed report: the following arguments are required: RUN; 'gdpfed report",
        ),
        (
            ["status", "a", "b"],
            "gdpfed status takes no b; 'gdpfed status --help' shows",
        ),
        (["report", "nosuch"], "nosuch is not a run: there is no such directory [report]"),
        (["audit", "nosuch"], "nosuch is not a run: there is no such directory [report]"),
        (["audit", "--attack", __file__], "is not a run: it is a file, and a run is a directory [report]"),
        (
            ["compare", "."],
            ". is not a run: it holds no config.yaml with a run's settings; name the",
        ),
        (["simulate", "--jobs", "x"], "argument --jobs: 'x' is not a whole number; 'gdpfed simulate --help'"),
        (["compare", __file__], "is not a run: it is a file, and a run is a directory [report]"),
        (["plan", "method=gdpfed_pls"], "method=gdpfed_pls is not known; did you mean gdpfed_plus? Use "),
        (
            ["plan", "privacy.budgets=[1,3,6"],
            "privacy.budgets=[1,3,6 opens a [ and does not close it: in a",
        ),
        (["plan", "privacy.budgets=[1,3]]"], "privacy.budgets=[1,3]] closes a ']' that nothing opens: in a"),
        (
            ["plan", "privacy.client_budgets={a:", "1}"],
            "opens a { and does not close it: in a shell put the whole setting in quotes, as in "
            "'privacy.client_budgets={bonn: 1, fulda: 6}'",
        ),
        (["plan", "dataset.model='mlp"], "dataset.model='mlp opens a ' and does not close it"),
        (["plan", "run.seed=a;b"], "run.seed=a;b cannot be read: a text with signs needs quotes of its own"),
        (["simulate", "dataset=heart_disease"], "dataset.path is not set: name the folder with UCI's"),
        (
            ["simulate", "dataset=csv"],
            "dataset.path is not set: name a table, or a folder with one for each party",
        ),
        (
            ["run", "dataset=npz", "dataset.path=no.npz"],
            "dataset.path=no.npz is not there: name the .npz",
        ),
        (["demo", "method=fedavg"], "method=fedavg: the demo sets this itself; use gdpfed simulate"),
        (["new", "mine.txt", "--yes"], "mine.txt must be a YAML file: name it mine.yaml [config]"),
        (["new"], "gdpfed new asks its questions on a terminal: in a script give --yes and options [input]"),
        (["new", "a.yaml", "--yes", "--budgets", "1,x"], "--budgets 1,x: give numbers above 0 with commas"),
        (
            ["new", "a.yaml", "--yes", "--data", "csv"],
            "--path: give the path of the data, a file or a folder [input]",
        ),
        (
            ["new", "a.yaml", "--yes", "--path", "x"],
            "--path x: the digits are bundled; leave it out, or choose --data",
        ),
        (["new", ".", "--yes"], ". is a folder: name a file in it, such as gdpfed.yaml [config]"),
        (
            ["new", "", "--yes"],
            "argument FILE: '' is not a path: name a file or a folder; 'gdpfed new --help'",
        ),
        (["columns", "."], ". is a folder: name one table in it, whose columns the others have too"),
        (["columns", "/"], "/ is a folder: name one table in it, whose columns the others have too"),
        (["columns", ""], "argument TABLE: '' is not a path: name a file or a folder"),
        (["columns", "/dev/null"], "/dev/null is a pipe or a device: write the table into a file, and name"),
        (
            ["adapt", "model", "", "--output", "x"],
            "argument TABLE: '' is not a path: name a file or a folder",
        ),
        (["reproduce", "bench", "--rows", ""], "argument --rows/--rules: '' names nothing: name one or more"),
        (["audit", ""], "gdpfed: '' is not a path: name a file or a folder [config]"),
        (["audit", "--canaries", "~nobody-here/run"], "~nobody-here/run: Could not determine home directory"),
        (["stats", "~nobody-here/run"], "~nobody-here/run: Could not determine home directory"),
        (["plan", "~nobody-here/a.yaml"], "~nobody-here/a.yaml: Could not determine home directory"),
        (["plan", "nowhere.yaml"], "nowhere.yaml cannot be read (No such file or directory): name a file as"),
    ],
)
def test_what_cannot_be_read_is_one_line(capsys, monkeypatch, tmp_path, words, said):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    captured = capsys.readouterr()
    assert captured.err.count("\n") == 1
    assert captured.err.startswith("gdpfed: ")
    assert said in captured.err
    assert captured.out == ""
    assert list(tmp_path.iterdir()) == []


def test_a_plan_needs_no_data(capsys):
    assert main(["plan", "dataset=heart_disease", "method=dp_fedavg"]) == 0
    assert capsys.readouterr().err == ""


def test_new_writes_a_file_that_commands_take_and_overrides_go_before_it(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["new", "--yes", "--protect", "record", "--clients", "20", "--budgets", "3,1"]) == 0
    assert capsys.readouterr().out.startswith("gdpfed.yaml is written. Next: gdpfed plan gdpfed.yaml, then")
    words = ["dataset=digits", "privacy=record_level", "method=dp_sum"]
    assert written_out(["gdpfed.yaml"]) == [*words, "dataset.num_clients=20", "privacy.budgets=[1.0,3.0]"]
    assert main(["plan", "gdpfed.yaml", "privacy.budgets=[2]"]) == 0
    assert capsys.readouterr().out.startswith("who      20 clients, a budget of epsilon 2, for each record\n")
    assert main(["new", "--yes"]) == 2
    assert "gdpfed.yaml is there already" in capsys.readouterr().err


def test_new_asks_on_a_terminal_until_it_can_read_the_answer(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    answers = iter(["", "0", "30", "recrod", "client", "6, 1"])
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr("builtins.input", lambda prompt: next(answers))
    assert main(["new", "mine.yaml"]) == 0
    out = capsys.readouterr().out
    assert "at least 1" in out
    assert "choose client, record" in out
    config = load(written_out(["mine.yaml"]))
    assert (config.dataset.num_clients, config.privacy.budgets) == (30, [1.0, 6.0])


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1, 2]", "holds no settings"),
        ("defaults: [digits]", "defaults has 'digits': write a group: option"),
        ("run: 3", "run: 3 is not a group: write key: value below it"),
        ("run: {seed: 1, seed: 2}", "cannot be read"),
    ],
)
def test_a_file_that_holds_no_settings_is_refused(tmp_path, text, said):
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match="mine.yaml") as caught:
        written_out([str(path)])
    assert said in str(caught.value)


def test_values_of_a_file_are_read_as_they_are_written(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text(
        "defaults: [_self_, {dataset: digits}]\n"
        "run: {directory: 'a, b', resume: null, show_cohorts: true}\n"
        "training: {learning_rate: 1e-2}\n"
    )
    config = load(written_out([str(path)]))
    assert (config.run.directory, config.run.resume, config.run.show_cohorts) == ("a, b", None, True)
    assert config.training.learning_rate == 0.01
