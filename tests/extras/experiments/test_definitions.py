"""Tests of experiment files: each can be loaded and planned, and table 5 has the published values."""

from dataclasses import replace

import pytest
from matplotlib.image import imread

from conf.load import load, options
from gdpfed.cli import main
from gdpfed.errors import ConfigError
from gdpfed.extras.experiments import definitions, reproduction
from gdpfed.extras.experiments.cells import Setting, cells_of
from gdpfed.extras.experiments.definitions import experiments, load_experiment
from gdpfed.extras.experiments.reproduction import PLANNED
from gdpfed.methods import METHODS, make_method
from gdpfed.methods.rates import configured_delta
from gdpfed.privacy.planning.groups import paper_delta

PAPER_TOLERANCE_PERCENT = 1.5


def test_all_tables_and_figures_are_there():
    assert experiments() == [
        *(f"table{number}" for number in (2, 5, 6, 7, 8, 9, 10)),
        *(f"figure{number}" for number in (1, 2)),
        *("best", "demo", "bench", "heart", "norms", "ali-tau", "records", "ali-noise", "everybody"),
        *("bench-records", "fedpcs-table2", "h2fdp-cifar10"),
        *(f"h2fdp-figure{number}" for number in (4, 5, 6, 7, 8, 9)),
        *(f"fedpcs-figure{number}" for number in (3, 5, 6, 7)),
        *("heart-defaults", "bench-allocation"),
    ]


RECORDS = (
    *("heart", "ali-tau", "records", "ali-noise", "fedpcs-table2"),
    *("h2fdp-cifar10", *(f"h2fdp-figure{number}" for number in (4, 5, 6, 7, 8, 9))),
)


@pytest.mark.parametrize("name", RECORDS)
def test_every_cell_of_those_about_records_composes(name):
    experiment = load_experiment(name)
    units = {cell.config.privacy.unit for cell in cells_of(experiment, Setting())}
    assert "record" in units
    assert all(cell.config.method.name in METHODS.names() for cell in cells_of(experiment, Setting()))


def test_every_method_has_the_same_training_and_average():
    cells = cells_of(load_experiment("best"), Setting(datasets=("digits", "cifar10-hog", "tinyshakespeare")))
    assert len(cells) == 3 * 4 * 9
    assert {cell.config.method.average for cell in cells} == {"polynomial"}
    for dataset in ("digits", "cifar10-hog", "tinyshakespeare"):
        own = [cell.config for cell in cells if cell.dataset == dataset]
        assert len({repr((each.dataset, each.training)) for each in own}) == 1
        assert len({each.privacy.clipping_norm for each in own}) == 1


def test_rows_are_chosen_by_their_names_or_how_they_begin():
    experiment = load_experiment("ali-tau")
    assert [*experiment.with_rows(["fixed", "knee"]).rows] == [
        *("fixed1", "fixed2", "fixed5", "fixed10", "fixed20", "fixed40", "knee"),
    ]
    assert experiment.with_rows([]) is experiment
    with pytest.raises(ConfigError, match="ali-tau has no row 'most'"):
        experiment.with_rows(["most"])


def test_steps_between_rounds_are_compared_on_pictures_too(tmp_path, capsys):
    cells = cells_of(load_experiment("ali-tau"), Setting(datasets=("digits", "cifar10-features")))
    assert len(cells) == 2 * 13 * 6
    (data,) = {cell.config.dataset.path for cell in cells if cell.dataset == "cifar10-features"}
    assert str(data).endswith("data/cifar10-images")
    asked = ["simulate", "dataset=cifar10-features", "method=fedavg", f"dataset.path={tmp_path / 'none'}"]
    assert main(asked) == 2
    error = capsys.readouterr().err
    assert "none is not there: name the directory with the class folders" in error
    assert error.count("\n") == 1


# Whole files: one data set each here, and mostly the same, since every choice of options takes Hydra a while.
DATASETS = {
    "table2": "cifar10",
    "table6": "svhn",
    "table7": "cifar10",
    "table8": "shakespeare",
    "table9": "cifar10",
    "table10": "cifar10",
    "figure1": "cifar10",
}


@pytest.mark.parametrize("name", DATASETS)
def test_every_cell_composes_and_those_of_the_last_column_plan(name):
    experiment = load_experiment(name)
    setting = Setting(
        datasets=(DATASETS[name],), overrides=("privacy.accountant=rdp", "privacy.renyi_orders=whole")
    )
    cells = cells_of(experiment, setting)
    columns = list(experiment.columns) or [""]
    assert len({cell.place for cell in cells}) == len(cells) == len(experiment.rows) * len(columns)
    for cell in cells[-len(experiment.rows) :]:
        plan = make_method(cell.config).plan
        assert plan.num_clients == cell.config.dataset.num_clients
        assert plan.private == (cell.row != "fedavg")
        assert plan.delta == paper_delta(plan.num_clients) > 1e-5
    by_place = {(cell.row, cell.column): cell.config.privacy for cell in cells}
    if name == "table9":
        assert by_place["gdpfed", "x075"].budgets == [1.5, 4.5, 9.0]
        assert by_place["gdpfed", "x150"].budgets == [3.0, 9.0, 18.0]
    if name == "table10":
        assert by_place["gdpfed", "x125"].clipping_norm == 1.875


@pytest.mark.parametrize(
    ("name", "dataset", "expected"), [("table10", "cifar10", 60**-1.1), ("demo", "digits", 1e-5)]
)
def test_the_papers_delta_is_of_its_tables_alone_and_of_the_clients_that_there_are(name, dataset, expected):
    setting = Setting(datasets=(dataset,), client_factor=0.1)
    experiment = load_experiment(name)
    text = " ".join(experiment.text)
    assert ("which is not far below 1 / n" in text) == experiment.paper_delta == (name == "table10")
    cell = cells_of(experiment.with_rows(["dp_fedavg"]), setting)[-1]
    assert configured_delta(cell.config) == pytest.approx(expected)


def test_table_5_meets_every_published_figure(tmp_path):
    experiment = load_experiment("table5")
    published = set(experiment.published.variances)
    experiment.rows = {name: row for name, row in experiment.rows.items() if name in published}
    presentation = compute(experiment, ("fmnist", "svhn"), tmp_path)
    rows = [dict(zip(presentation.figures.headings, row, strict=True)) for row in presentation.figures.rows]
    off = {
        (row["dataset"], row["row"], row["group"], row["quantity"]): float(row["deviation_percent"])
        for row in rows
        if row["published"] and row["calibration"] == "rdp, as published"
    }
    assert len(off) == 3 + 3 + 3 + 1
    assert max(map(abs, off.values())) < PAPER_TOLERANCE_PERCENT
    ours = {
        (row["calibration"], row["quantity"], row["group"]): float(row["value"])
        for row in rows
        if (row["dataset"], row["row"]) == ("fmnist", "gdpfed")
    }
    for name in ("rdp", "pld"):
        variances = [ours[name, "sigma^2", str(group)] for group in range(3)]
        assert ours[name, "Lambda", ""] == pytest.approx(1.5**2 / 3 * sum(variances), rel=1e-4)
    assert ours["pld", "sigma^2", "0"] < 0.75 * ours["rdp", "sigma^2", "0"]
    markdown = presentation.tables[0].to_markdown()
    assert "| GDPFed | 2.00<br>2.00<br>2.00 | 2.26<br>0.90<br>0.53 | 2.26<br>0.90<br>0.53 |" in markdown


def test_figure_2_is_the_closed_form(tmp_path):
    experiment = load_experiment("figure2")
    experiment.rows = {name: experiment.rows[name] for name in ("x020", "x100", "x290")}
    experiment.overrides.append("privacy.accountant=rdp")
    rows = [list(map(str, row)) for row in compute(experiment, ("fmnist",), tmp_path).figures.rows]
    assert len(rows) == 3 * 3
    for *_, rate, closed_form in rows:
        assert float(rate) == pytest.approx(float(closed_form), rel=2e-3)
    assert [float(row[4]) for row in rows if row[1] == "x100"] == pytest.approx([0.63, 1.83, 3.54], abs=0.01)
    strictest = [float(row[4]) for row in rows if row[2] == "0"]
    assert strictest == sorted(strictest)


@pytest.mark.parametrize("number", [3, 5, 6, 7])
def test_what_a_game_comes_to_is_shown_from_plans_alone(number, tmp_path):
    experiment = load_experiment(f"fedpcs-figure{number}")
    experiment.rows = dict(list(experiment.rows.items())[:3])
    experiment.overrides += ["dataset.num_clients=20", "run.num_rounds=5"]
    if number == 7:
        experiment.rows["none"] = replace(experiment.rows["c400"], overrides=["method.caps=[90,1]"])
        for row in ("c700", "c400"):
            experiment.rows[row].overrides = ["method.caps=[90,40]"]
    figures = compute(experiment, ("digits",), tmp_path)
    values = {(row, name): float(value) for _, row, name, value in figures.figures.rows}
    if number == 3:
        assert all(values[row, "announcements"] <= 60 for row in experiment.rows)
        assert values["r5", "cv of x, round 2"] < values["r5", "cv of x, round 1"]
    elif number == 5:
        assert all(
            values[row, "game"] < values[row, "attainable, posted price"] <= values[row, "printed optimum"]
            for row in experiment.rows
        )
    elif number == 6:
        assert values["random2", "paid"] == pytest.approx(values["fedpcs2", "paid"])
        assert values["fedpcs2", "expected zCDP"] == pytest.approx(values["random2", "expected zCDP"])
    else:
        assert values["c700", "clients, last round (%)"] < values["c700", "clients, round 1 (%)"]
        assert values["c700", "of the caps spent (%)"] > 80
        assert "no sample meets a round's cap" in figures.tables[0].note


@pytest.mark.parametrize("number", [5, 8])
def test_what_control_chooses_is_shown_from_plans_alone(number, tmp_path):
    experiment = load_experiment(f"h2fdp-figure{number}")
    figures = compute(experiment, ("digits",), tmp_path).figures
    values = {(row, column, name): float(value) for _, row, column, name, value in figures.rows}

    def of(row, *names):
        return [values[row, "printed" if number == 8 else "", name] for name in names]

    if number == 8:
        chosen = ("tau", "s, trusted", "s, untrusted")
        assert of("one", *chosen) == [40, 6, 9]
        assert of("energy", *chosen) == [40, 5, 7]
        assert of("delay", *chosen) == of("quiet", *chosen) == [40, 4, 5]
        assert of("noise", *chosen) == [36, 8, 15]
        for dear, cheap in (("one", "energy"), ("one", "delay"), ("noise", "one"), ("noise16", "noise")):
            assert of(dear, "tau") <= of(cheap, "tau")
            assert of(dear, "devices") >= of(cheap, "devices")
            assert of(dear, "nu") <= of(cheap, "nu")
    else:
        assert of("control", "energy (J)") < of("h2fdp", "energy (J)") == of("hfl_dp", "energy (J)")
        assert of("control", "delay (s)") < of("h2fdp", "delay (s)") == of("hfl_dp", "delay (s)")
        assert of("control", "nu") > of("h2fdp", "nu")


def compute(experiment, datasets, directory):
    """Compute what an experiment shows from plans alone, draw its picture, and check the picture's size."""
    cells = cells_of(experiment, Setting(datasets=datasets))
    presentation = PLANNED.get(experiment.quantity)(experiment, datasets, cells)
    presentation.draw(directory / "picture.png")
    assert min(imread(directory / "picture.png").shape[:2]) > 200
    return presentation


def test_an_experiment_is_no_option_group():
    with pytest.raises(ConfigError, match="setting 'experiment' is not known"):
        load(["experiment=table2"])
    assert list(options("experiment")) == sorted(experiments())


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("quantity: speed", "bad: quantity=speed is not known: use accuracy, convergence, benchmark, caps"),
        ("quantity: accuracy", "bad: give at least one row and one data set"),
        ("quantity: accuracy\ncolour: red", "Key 'colour' not in 'Experiment'"),
        (
            "quantity: accuracy\nmethods: [fedavg]\npublished: {accuracy: {x: {}}}",
            "published figures for 'x'",
        ),
        ("quantity: [", "while parsing"),
    ],
)
def test_a_file_that_does_not_fit_is_one_line(tmp_path, monkeypatch, text, message):
    (tmp_path / "bad.yaml").write_text(f"title: t\ndatasets: [digits]\n{text}\n")
    rows = definitions.EXPERIMENT_DIRECTORY / "rows"
    monkeypatch.setattr(definitions, "EXPERIMENT_DIRECTORY", tmp_path)
    assert rows.is_dir()
    with pytest.raises(ConfigError) as refused:
        load_experiment("bad")
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_name_that_is_none_gets_the_nearest(capsys):
    assert main(["reproduce", "tabel5"]) == 2
    assert "experiment 'tabel5' is not known; did you mean table5? Use " in capsys.readouterr().err


def test_the_list_names_them_all(capsys):
    assert main(["reproduce", "--list"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in experiments())
    rows = [[cell.strip() for cell in line.split("│")] for line in shown.splitlines()]
    assert [row[1] for row in rows if len(row) == 6 and row[1] and not row[2]] == []


@pytest.mark.parametrize(
    ("rows", "found"),
    [
        ("fedavg,gdpfed_star", ["fedavg", "gdpfed_star", "sampled_fedavg"]),
        ("fedavg,sampled_fedavg", ["fedavg", "sampled_fedavg"]),
    ],
)
def test_an_added_method_has_a_row_beside_the_chosen_ones(rows, found, monkeypatch):
    asked = []

    def note(request, console):
        asked.append(request)
        return True

    monkeypatch.setattr(reproduction, "reproduce", note)
    words = ["--rows", rows, "--add", "sampled_fedavg", "--datasets", "digits"]
    assert main(["reproduce", "bench", *words]) == 0
    assert list(asked[0].experiment.rows) == found
