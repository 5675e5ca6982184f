"""Tests of comparing runs: runs that differ in the seed alone share a row; unfinished runs are refused."""

import csv
import json
import os
import shutil
from dataclasses import replace
from statistics import mean, stdev

import pytest
from matplotlib.image import imread

from conf.load import load
from gdpfed.cli import main
from gdpfed.methods import make_method, resolve
from gdpfed.report.comparison import lines_of
from gdpfed.report.comparison_tables import TRUSTED, budgets_table, results_table, whom_it_holds_against
from gdpfed.report.finished_run import read_run
from gdpfed.report.metric_display import ABSENT
from gdpfed.report.report_files import write_report
from gdpfed.report.report_tables import tables_of
from gdpfed.report.run_folders import ORDER_FILE, run_paths, save_sweep_order
from gdpfed.runs.file_formats import MODEL_FILE, versioned
from testing.small_runs import nothing_drawn
from testing.written_runs import DIMENSION, write_run

FINAL = (0.62, 0.65, 0.71)
RDP = "privacy.accountant=rdp"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Write three runs of gdpfed_plus that show cohort sizes, one run of dp_fedavg and one of fedavg."""
    folder = tmp_path_factory.mktemp("runs")
    for seed, final in enumerate(FINAL):
        accuracies = (0.1, 0.3 + seed / 100, final)
        words = [RDP, f"run.seed={seed}", "run.show_cohorts=true"]
        write_run(folder / f"plus{seed}", words, accuracies=accuracies, seconds=1 + seed)
    write_run(folder / "dp", [RDP, "method=dp_fedavg"], accuracies=(0.2, 0.3, 0.4))
    write_run(folder / "plain", ["method=fedavg"], accuracies=(0.2, 0.6, 0.9))
    return folder


@pytest.fixture
def runs(written, tmp_path):
    """Return a copy of the written runs that a test may change."""
    return shutil.copytree(written, tmp_path, dirs_exist_ok=True)


def directories(path):
    return [str(each) for each in sorted(path.iterdir())]


def test_runs_that_differ_in_the_seed_are_one_line(runs):
    lines = lines_of([read_run(path) for path in sorted(runs.iterdir())])
    assert [(line.label, [run.seed for run in line.runs]) for line in lines] == [
        ("dp_fedavg", [0]),
        ("fedavg", [0]),
        ("gdpfed_plus", [0, 1, 2]),
    ]
    percent = [100 * final for final in FINAL]
    final = lines[2].final_result
    assert [final.mean, final.stddev] == pytest.approx([mean(percent), stdev(percent)])
    assert [spread.mean for spread in lines[2].results()] == pytest.approx([10, 31, mean(percent)])
    assert lines[0].final_result.stddev is None


@pytest.mark.parametrize(
    ("overrides", "whom"),
    [
        (["method=dp_fedavg", "privacy.against=outsiders"], "outsiders"),
        (["method=dp_fedavg", "privacy.against=everyone"], "everyone"),
        (["method=dp_fedavg", "privacy.against=everyone", "secagg=off"], TRUSTED),
        (["dataset=breast_cancer", "privacy=record_level", "method=dp_sum"], "everyone"),
        (["dataset=breast_cancer", "privacy=record_level", "method=dp_sum", "secagg=off"], TRUSTED),
        (["dataset=breast_cancer", "privacy=record_level", "method=dp_sgd", "secagg=off"], "everyone"),
        (["method=fedavg"], ABSENT),
    ],
)
def test_whom_epsilon_holds_against_follows_from_what_is_secret(overrides, whom):
    assert whom_it_holds_against(make_method(resolve(load(overrides))).plan.to_dict()) == whom


def test_a_label_names_what_tells_lines_apart(tmp_path):
    for name, overrides in {
        "a": ["privacy.clipping_norm=1.5"],
        "b": ["privacy.clipping_norm=2.5", "privacy.budgets=[1,2,4]"],
        "c": ["dataset.clipping_norm=3.5"],
        "d": ["method=dp_fedavg"],
        "e": ["dataset=npz", "method=dp_fedavg"],
    }.items():
        write_run(tmp_path / name, [RDP, *overrides])
    assert [line.label for line in lines_of([read_run(path) for path in sorted(tmp_path.iterdir())])] == [
        "digits, gdpfed_plus, budgets (1, 3, 6), clipping_norm 1.5",
        "digits, gdpfed_plus, budgets (1, 2, 4), clipping_norm 2.5",
        "digits, gdpfed_plus, budgets (1, 3, 6), clipping_norm 3.5",
        "digits, dp_fedavg",
        "npz, dp_fedavg",
    ]


def test_a_label_names_few_of_many_settings_that_go_with_each_other(tmp_path):
    """If two rows of a comparison differ in many settings, a label names one and counts the other ones."""
    steps = ["training.local_steps=7", "training.batch_size=3", "training.momentum=0.5"]
    for name, overrides in {
        "a": ["privacy.budgets=[1]"],
        "b": ["privacy.budgets=[8]", "training.learning_rate=0.1", *steps],
    }.items():
        write_run(tmp_path / name, [RDP, *overrides])
    assert [line.label for line in lines_of([read_run(path) for path in sorted(tmp_path.iterdir())])] == [
        "gdpfed_plus, budgets (1), and 4 settings more",
        "gdpfed_plus, budgets (8), and 4 settings more",
    ]


def test_a_label_leaves_out_what_a_method_chose_by_itself(tmp_path):
    runs = []
    for budget, rate in ((1, 0.2), (4, 0.5)):
        words = [
            RDP,
            f"privacy.budgets=[{budget}]",
            f"privacy.batch_rate={rate}",
            f"training.learning_rate={rate}",
        ]
        run = read_run(write_run(tmp_path / str(budget), words))
        chosen = [f"privacy.batch_rate={rate}", f"training.learning_rate={rate}"]
        method = {**run.settings["method"], "chosen": chosen}
        runs.append(replace(run, settings={**run.settings, "method": method}))
    assert [line.label for line in lines_of(runs)] == ["gdpfed_plus, budgets (1)", "gdpfed_plus, budgets (4)"]


def test_the_same_training_is_one_line_by_whatever_group_it_was_chosen(tmp_path):
    for seed, steps in enumerate(
        ("dataset.local_steps=9", "training.local_steps=9", "training.local_steps=5")
    ):
        write_run(tmp_path / f"run{seed}", [RDP, steps, f"run.seed={seed}"])
    lines = lines_of([read_run(path) for path in sorted(tmp_path.iterdir())])
    assert [(line.label, [run.seed for run in line.runs]) for line in lines] == [
        ("gdpfed_plus, local_steps 9", [0, 1]),
        ("gdpfed_plus, local_steps 5", [2]),
    ]


def test_the_tables_hold_the_figures(runs, capsys):
    assert main(["report", *directories(runs), "--markdown"]) == 0
    shown = capsys.readouterr().out
    percent = [100 * final for final in FINAL]
    results = next(line for line in shown.splitlines() if line.startswith("| gdpfed_plus | 3"))
    cells = [cell.strip() for cell in results.strip("|").split("|")]
    up, down = 2.0 * DIMENSION / 1000, 4 * DIMENSION / 1000
    assert cells[3] == f"{mean(percent):.1f} ± {stdev(percent):.1f}" == "66.0 ± 4.6"
    assert cells[5:] == [f"{up:.1f}", f"{down:.1f}", "2.00 ± 1.00"]
    # How long rounds took follows from how many trained, which is a secret of the draw.
    secret = next(line for line in shown.splitlines() if line.startswith("| dp_fedavg | 1"))
    assert secret.strip("| ").endswith(ABSENT)
    assert f"Seconds: {ABSENT} where they tell of a secret draw" in " ".join(shown.split())
    budgets = [line for line in shown.splitlines() if "| 0.75 |" in line or "| 2.25 |" in line]
    assert len(budgets) == 3
    assert any("none" in line for line in shown.splitlines() if line.startswith("| fedavg | 0"))


def test_the_note_explains_a_dash_only_where_there_is_one(runs):
    [line] = lines_of([read_run(runs / "dp")])
    table = results_table([line])
    assert table.rows[0][5] != ABSENT
    assert "no round made a sum" not in table.note
    [run] = line.runs
    without = replace(run, records=[replace(record, upload_bytes=[0.0]) for record in run.records])
    table = results_table(lines_of([without]))
    assert table.rows[0][5] == ABSENT
    assert f"{ABSENT}: no round made a sum" in table.note


def test_the_tables_lose_nothing_at_80_columns(runs, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["report", *directories(runs)]) == 0
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    for table in tables_of(lines_of([read_run(path) for path in sorted(runs.iterdir())])).values():
        for cell in (cell for row in table.rows for cell in row):
            assert cell in shown


def test_a_report_names_a_folder_whose_name_no_text_can_hold(runs, tmp_path_factory):
    output, run = tmp_path_factory.mktemp("report"), runs / os.fsdecode(b"\xff")
    (runs / "plain").rename(run)
    with nothing_drawn():
        write_report(lines_of([read_run(run)]), output)
    assert f"* fedavg: {runs}/ \n" in (output / "report.md").read_text()
    assert f",{runs}/ \n" in (output / "seeds.csv").read_text()


def test_the_report_is_markdown_tables_and_pictures(runs, tmp_path_factory, capsys):
    output = tmp_path_factory.mktemp("report")
    assert main(["report", *directories(runs), "--output", str(output)]) == 0
    assert "66.0 ± 4.6" in capsys.readouterr().out
    text = (output / "report.md").read_text()
    assert "| gdpfed_plus | 3 | 3 | 66.0 ± 4.6 |" in text
    assert (output / "results.csv").read_text().splitlines()[3].startswith("gdpfed_plus,3,3,66.0 ± 4.6,")
    for name in ("epsilon.png", "accuracy.png", "final_accuracy.png", "budgets.png", "cost.png"):
        assert f"]({name})" in text
        picture = imread(output / name)
        assert min(picture.shape[:2]) > 200
        assert 0.005 < (picture[..., :3].min(axis=2) < 0.9).mean() < 0.5


def spoil(runs, name):
    """Damage a run in the way that `name` states, or choose a path without a run; return the directory."""
    run = runs / "plus0"
    if name == "absent":
        return runs / "nowhere"
    if name == "empty":
        (runs / "bare").mkdir()
        return runs / "bare"
    if name == "unfinished":
        (run / MODEL_FILE).unlink()
    if name == "model":
        (run / MODEL_FILE).write_bytes(b"nonsense")
    if name == "plan":
        (run / "plan.json").write_text(json.dumps(versioned({"groups": []})))
    if name == "line":
        (run / "rounds.jsonl").write_text("nonsense\n")
    if name == "short":
        lines = (run / "rounds.jsonl").read_text().splitlines(keepends=True)
        (run / "rounds.jsonl").write_text("".join(lines[:2]))
    return run


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent", "is not a run: there is no such directory"),
        ("empty", "is not a run: it holds no config.yaml with a run's settings"),
        ("unfinished", "is not finished, 3 of 3 rounds are recorded: continue it with run.resume="),
        ("model", "is a damaged run: model/weights.safetensors: "),
        ("plan", "is a damaged run: plan.json holds no plan"),
        ("line", "is a damaged run: "),
        ("short", "is a damaged run: its record does not hold the rounds 1 to 3 once each"),
    ],
)
def test_what_is_no_finished_run_is_one_line(runs, capsys, name, message):
    output = runs / "never"
    assert main(["report", str(spoil(runs, name)), "--output", str(output)]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert not output.exists()


def test_a_folder_of_folders_of_runs_leads_to_these(tmp_path, capsys):
    one = tmp_path / "all" / "out" / "runs" / "one"
    one.mkdir(parents=True)
    (one / "plan.json").write_text("")
    for command in ("compare", "report"):
        assert main([command, str(tmp_path / "all")]) == 2
        said = f"settings; name {tmp_path / 'all' / 'out' / 'runs'}, which holds runs"
        assert said in capsys.readouterr().err


def test_runs_one_folder_deeper_are_found_and_those_below_are_named(runs, capsys):
    """`gdpfed report` finds runs like those of a demo, and passes over settings of other programs."""
    demo, below = runs / "a-demo" / "private", runs / "a-demo" / "more"
    demo.parent.mkdir()
    (runs / "dp").rename(demo)
    shutil.copytree(demo, below / "again")
    (runs / "a-demo" / "hydra").mkdir()
    (runs / "a-demo" / "hydra" / "config.yaml").write_text("a: 1\n")
    assert main(["report", str(runs), "--markdown"]) == 0
    shown, said = capsys.readouterr()
    rows = [line.split(" | ")[0] for line in shown.splitlines() if line.startswith("| ")]
    assert rows[2:5] == ["| dp_fedavg", "| fedavg", "| gdpfed_plus"]
    assert said == f"gdpfed: left out: runs that lie deeper, in {below}: name that directory\n"


def test_the_runs_of_a_sweep_come_in_its_order(runs):
    save_sweep_order(runs, ["plus1", "gone"])
    save_sweep_order(runs, ["plain", "dp"])
    names = [path.name for path in run_paths([runs])]
    assert names == ["plain", "dp", "plus1", "plus0", "plus2"]


@pytest.mark.parametrize("text", ["{", "[]", '{"jobs": 1}', '{"version": 0, "runs": ["plus1"]}', None])
def test_a_file_that_is_no_order_of_a_sweep_changes_nothing(runs, text):
    """Neither a damaged file nor one of another program keeps a sweep or a report from its table."""
    (runs / ORDER_FILE).write_text(json.dumps(versioned({})) if text is None else text)
    (runs / "other").mkdir()
    (runs / "other" / ORDER_FILE).write_text('{"jobs": 1}')
    assert [path.name for path in run_paths([runs])] == ["dp", "plain", "plus0", "plus1", "plus2"]
    save_sweep_order(runs, ["plus1"])
    assert next(run_paths([runs])).name == "plus1"


def test_a_folder_that_may_not_be_read_is_passed_over(runs, monkeypatch):
    (runs / "locked").mkdir()
    stat = os.stat

    def refusing(path, *given, **named):
        if os.fspath(path).startswith(f"{runs / 'locked'}/"):
            raise PermissionError(path)
        return stat(path, *given, **named)

    monkeypatch.setattr(os, "stat", refusing)
    assert len(list(run_paths([runs]))) == 5


def test_a_run_that_goes_on_is_left_out_of_the_others(runs, capsys):
    assert main(["report", str(runs / "dp"), str(spoil(runs, "unfinished")), "--markdown"]) == 0
    captured = capsys.readouterr()
    assert "gdpfed: left out: " in captured.err
    assert captured.err.count("\n") == 1
    assert "| dp" in captured.out


def test_a_run_named_twice_is_refused(runs, capsys):
    assert main(["report", str(runs / "dp"), str(runs / "dp" / ".." / "dp")]) == 2
    assert "is named twice: it would count as two seeds" in capsys.readouterr().err


def test_lines_that_share_seeds_are_compared_seed_by_seed(runs, tmp_path_factory, capsys):
    """Two methods with the same seeds are compared seed by seed, with a t interval of their difference."""
    for seed, final in enumerate((0.30, 0.38, 0.41)):
        write_run(
            runs / f"dp{seed}", [RDP, "method=dp_fedavg", f"run.seed={seed}"], accuracies=(0.2, 0.3, final)
        )
    shutil.rmtree(runs / "dp")
    chosen = [str(runs / name) for name in ("plus0", "plus1", "plus2", "dp0", "dp1", "dp2", "plain")]
    output = tmp_path_factory.mktemp("paired")
    assert main(["report", *chosen, "--output", str(output)]) == 0
    lines = (output / "differences.csv").read_text().splitlines()
    half = 4.3026527 * stdev((-32, -27, -30)) / 3**0.5
    assert lines[1:] == [f"dp_fedavg,3,-29.7 ± 2.5,{-89 / 3 - half:+.1f} to {-89 / 3 + half:+.1f}"]
    assert "Differences to gdpfed_plus, by seed" in capsys.readouterr().out
    seeds = list(csv.DictReader((output / "seeds.csv").read_text().splitlines()))
    assert [(each["method"], each["seed"], float(each["result"])) for each in seeds[3:6]] == [
        ("dp_fedavg", "0", 30.0),
        ("dp_fedavg", "1", 38.0),
        ("dp_fedavg", "2", 41.0),
    ]
    assert float(seeds[0]["spent_1"]) == 1.5
    assert seeds[-1]["spent_1"] == ""


def test_tables_are_printed_as_latex(runs, capsys):
    assert main(["report", *directories(runs), "--latex"]) == 0
    shown = capsys.readouterr().out
    assert shown.count(r"\begin{tabular}") == shown.count(r"\end{table}") == 2
    row = next(line for line in shown.splitlines() if line.startswith(r"gdpfed\_plus & 3"))
    assert row.endswith(r"\\")
    assert r"66.0 $\pm$ 4.6" in row
    assert not set(shown) & set("±²–")


def test_the_noise_beside_a_budget_is_the_plans(tmp_path):
    def noise_of(name, *overrides):
        (line,) = lines_of([read_run(write_run(tmp_path / name, overrides))])
        table = budgets_table([line])
        assert "in clipping norms" in table.note
        return line.runs[0].plan["groups"][0], table.rows[0][table.headings.index("noise")]

    group, shown = noise_of("sum", RDP, "method=dp_fedavg")
    assert shown == f"{group['noise_multiplier']:.4g}"
    group, shown = noise_of("step", RDP, "dataset=breast_cancer", "privacy=record_level", "method=dp_sum")
    assert shown == f"{group['records']['noise_multiplier']:.4g}"
    assert noise_of("own", "dataset=digits", "privacy=record_level", "method=fedpcs")[1] == "each client's"
