"""Tests of the summary at a run's end, and of pictures and tables of accuracy against epsilon."""

from pathlib import Path

import pytest
from rich.console import Console

from gdpfed.report.chance import base_rate_line
from gdpfed.report.comparison import lines_of
from gdpfed.report.comparison_tables import differences_table, results_table, seeds_table
from gdpfed.report.ending import run_without_privacy, show_ending
from gdpfed.report.epsilon_picture import cost_points, draw_cost, without_privacy
from gdpfed.report.finished_run import read_run, read_settings
from gdpfed.report.metric_display import Spread
from gdpfed.report.run_status import RunStatus
from gdpfed.runs.file_formats import HELD_OUT_FILE, save_result
from testing.written_runs import write_run

PRIVATE = ("method=dp_fedavg", "privacy.sampling_rate=1")


def ending_of(directory: Path) -> list[str]:
    console = Console(width=80, record=True, quiet=False)
    with console.capture() as captured:
        show_ending(console, directory)
    return captured.get().splitlines()


def test_the_end_has_the_result_beside_what_is_known_and_budgets_as_bars(tmp_path):
    run = write_run(tmp_path / "private", PRIVATE, accuracies=(0.5, 0.875))
    (run / "model_card.md").write_text(f"# A card\n{base_rate_line('3', 0.103)}\n")
    write_run(tmp_path / "bare", ["method=fedavg"], accuracies=(0.5, 0.918))
    lines = ending_of(run)
    assert [line.strip() for line in lines[:4]] == [
        "result           accuracy 87.5 % after 2 of 2 rounds",
        "without a model  answering '3' always would be right for 10.3 % of it",
        "without privacy  accuracy 91.8 %, as in bare; no budget covers it",
        f"spent, group 0   {'█' * 10}{'░' * 10} 0.50 of 1, 360 clients",
    ]
    assert f"The run's files are in {run}" in lines
    assert any(line.startswith("  model_card.md  what was trained") for line in lines)


COUNTED = {"accuracy": {"value": 0.821, "low": 0.462, "high": 1.0}}
UNDEFINED = {"accuracy": {"value": None, "low": None, "high": None}}
HELD_OUT = "on records that 6 clients hold out"
NO_SUM = "run.evaluation=nodes has clients count after the last round, and no sum of these counts has come"


@pytest.mark.parametrize(
    ("counts", "words"),
    [
        (None, f"not evaluated: {NO_SUM}"),
        (COUNTED, f"accuracy 82.1 % (46.2 to 100.0) {HELD_OUT}"),
        (UNDEFINED, f"not evaluated: accuracy is not defined {HELD_OUT}, under their noise"),
    ],
)
def test_a_run_that_the_server_did_not_evaluate_says_so_in_words(tmp_path, counts, words):
    nodes = [*PRIVATE, "run.evaluation=nodes", "privacy.against=outsiders"]
    run = write_run(tmp_path / "run", nodes, accuracies=(None, None))
    if counts is not None:
        save_result(run / HELD_OUT_FILE, {"clients": 6, "metrics": counts})
    said = " ".join(" ".join(ending_of(run)).split())
    assert said.startswith(f"result {words}, after 2 of 2 rounds without privacy")
    assert words in repr(read_run(run))
    assert RunStatus.read(run).result == words
    lines = lines_of([read_run(run), read_run(write_run(tmp_path / "other", PRIVATE))])
    table = results_table(lines)
    assert [row[3] for row in table.rows] == ["not evaluated", "50.0"]
    assert "Not evaluated: run.evaluation=nodes has clients count" in table.note
    assert differences_table(lines) is None
    assert seeds_table(lines).rows[0][5] == ""
    assert [point.result.mean for point in cost_points(lines)] == [50.0]
    for shown in (said, repr(read_run(run)), table.to_markdown()):
        assert "nan" not in shown
        assert "accuracy –" not in shown


@pytest.mark.parametrize("other", ["run.seed=1", "dataset.model=softmax", "training.local_steps=3"])
def test_a_run_of_another_training_is_not_what_it_would_be_without_privacy(tmp_path, other):
    run = write_run(tmp_path / "private", PRIVATE)
    write_run(tmp_path / "bare", ["method=fedavg", other])
    settings = read_settings(run)
    assert settings is not None
    assert run_without_privacy(run, settings) is None
    assert any(line.startswith("without privacy  not known") for line in ending_of(run))
    bare = write_run(tmp_path / "other", ["method=fedavg"])
    assert run_without_privacy(run, settings) == bare
    assert not any(line.startswith("without privacy") for line in ending_of(bare))


def test_accuracy_against_epsilon_has_a_point_a_private_line_and_a_level_for_others(tmp_path):
    words = [(f"privacy.budgets=[{budget}]", f"run.seed={seed}") for budget in (1, 4) for seed in (0, 1)]
    paths = [write_run(tmp_path / str(number), [*PRIVATE, *said]) for number, said in enumerate(words)]
    bare = write_run(tmp_path / "bare", ["method=fedavg"], accuracies=(0.25, 0.75))
    lines = lines_of([read_run(path) for path in (*paths, bare)])
    points = cost_points(lines)
    assert [(point.method, point.budgets) for point in points] == [
        ("dp_fedavg", (1, 1, 1)),
        ("dp_fedavg", (4, 4, 4)),
    ]
    assert [point.result for point in points] == [Spread(50.0, 0.0, 2)] * 2
    assert without_privacy(lines) == {"fedavg, without privacy": Spread(75.0, None, 1)}
    draw_cost(points, without_privacy(lines), "accuracy", tmp_path / "epsilon.png")
    assert (tmp_path / "epsilon.png").read_bytes().startswith(b"\x89PNG")
    (mixed,) = cost_points(lines[:1], [Spread(10.0, None, 1)])
    assert mixed.result.mean == 10.0
