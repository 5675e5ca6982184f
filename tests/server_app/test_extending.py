"""Tests of the package in docs/extending.md, copied word for word: it plans, trains and resumes."""

import importlib
import re
import sys
import tomllib
from typing import ClassVar

import numpy as np
import pytest

from conf.load import load, options
from conf.sweeps import jobs_of
from gdpfed.errors import ConfigError
from gdpfed.methods import METHODS, ClientSum, Method, make_method
from gdpfed.methods.base import RunOption
from gdpfed.methods.party_budgets import configured_groups
from gdpfed.methods.rates import private_plan, scheduled_plan
from gdpfed.methods.shared_noise import SharedNoise
from testing.project import DOCS
from testing.small_runs import final_model, run

PAGE = DOCS / "extending.md"
FILE = re.compile(r"^\*\*`([^`]+)`\*\*\n\n```\w+\n(.*?)^```$", re.MULTILINE | re.DOTALL)
MINE = ["dataset=rings", "method=server_momentum"]


def install(directory, monkeypatch, entry_points):
    """Put a directory on the path with the metadata that an installer writes."""
    metadata = directory / "my_extension-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: my-extension\nVersion: 1.0\n")
    lines = []
    for group, points in entry_points.items():
        lines += [f"[{group}]\n", *(f"{name} = {value}\n" for name, value in points.items())]
    (metadata / "entry_points.txt").write_text("".join(lines))
    monkeypatch.syspath_prepend(directory)


@pytest.fixture
def extension(tmp_path, monkeypatch):
    """Install the package that docs/extending.md shows, and return its folder."""
    directory = tmp_path / "site"
    for name, text in FILE.findall(PAGE.read_text(encoding="utf-8")):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    project = tomllib.loads((directory / "pyproject.toml").read_text())["project"]
    install(directory, monkeypatch, project["entry-points"])
    return directory


def test_the_page_has_these_files(extension):
    names = {str(path.relative_to(extension)) for path in extension.rglob("*") if path.is_file()}
    assert {name for name in names if "dist-info" not in name} == {
        "pyproject.toml",
        "my_extension/__init__.py",
        "my_extension/ecg.py",
        "my_extension/server_momentum.py",
        "my_extension/rings.py",
        "my_extension/conf/method/server_momentum.yaml",
        "my_extension/conf/dataset/rings.yaml",
    }


@pytest.mark.usefixtures("extension")
def test_it_is_among_the_options():
    assert "server_momentum" in METHODS.names()
    assert "server_momentum" in options("method")
    assert "rings" in options("dataset")
    assert [job.overrides for job in jobs_of(["dataset=glob(ring*)"])] == [("dataset=rings",)]
    with pytest.raises(
        ConfigError,
        match="dataset=mnist is not known; did you mean fmnist. Use .*cifar10, .*npz, python, rings, shakes",
    ):
        load(["dataset=mnist"])
    with pytest.raises(
        ConfigError, match="setting 'method.server_momentum' is not known .* method=server_momentum"
    ):
        load(["method=gdpfed", "method.server_momentum=0.5"])
    with pytest.raises(ConfigError, match=r"method.server_momentum=2.0 must be in \[0, 1\)"):
        load([*MINE, "method.server_momentum=2"])


@pytest.mark.usefixtures("extension")
def test_it_plans_and_steps():
    method = make_method(load([*MINE, "privacy.accountant=rdp", "method.server_momentum=0.5"]))
    assert [group.epsilon for group in method.plan.groups] == [1.0, 3.0, 6.0]
    sums = [ClientSum(f"group {m}", np.ones(4), 5) for m in range(3)]
    one_step = 3 / (0.2 * 200)
    theta = np.zeros(4, dtype=np.float32)
    for expected in (one_step, one_step * 2.5, one_step * 4.25):
        theta = method.step(theta, sums)
        np.testing.assert_allclose(theta, expected, rtol=1e-5)


def test_it_plans_against_everyone_with_the_lines_of_the_page(extension, monkeypatch):
    settings = [*MINE, "privacy.against=everyone", "run.num_rounds=10"]
    with pytest.raises(ConfigError, match="privacy.against=everyone does not go with method=server_momentum"):
        make_method(load(settings))
    page = PAGE.read_text(encoding="utf-8").partition("## A plan against everyone")[2]
    lines = page.partition("```python\n")[2].partition("```")[0]
    (extension / "of_the_page.py").write_text(lines)
    kind = importlib.import_module("of_the_page").ScheduledMomentum
    monkeypatch.setattr(METHODS, "get", lambda name: kind)
    method = make_method(load(settings))
    assert (type(method), method.plan.against) == (kind, "everyone")
    assert [group.epsilon for group in method.plan.groups] == [1.0, 3.0, 6.0]


@pytest.mark.parametrize("against", ["everyone", "outsiders"])
def test_a_plan_of_one_sum_needs_a_method_that_asks_for_one(against, monkeypatch):
    """A method that would ask for a sum of each group under one noise for all is refused."""

    class Plans(Method):
        goes_with: ClassVar[tuple[RunOption, ...]] = ("any optimizer", "turns")

        @classmethod
        def make_plan(cls, config):
            rates = (config.privacy.sampling_rate,) * 3
            return private_plan(
                config, groups=configured_groups(config), group_sampling_rates=rates, one_sum=True
            )

        @classmethod
        def make_turn_plan(cls, config):
            return scheduled_plan(config, configured_groups(config))

    class OneSum(Plans, SharedNoise):
        pass

    settings = load(["method=gdpfed", f"privacy.against={against}"])
    monkeypatch.setattr(METHODS, "get", lambda name: Plans)
    with pytest.raises(ConfigError, match="is one sum over all 3 groups, .* must extend SharedNoise"):
        make_method(settings)
    monkeypatch.setattr(METHODS, "get", lambda name: OneSum)
    assert make_method(settings).plan.one_sum


@pytest.mark.usefixtures("extension")
def test_it_trains_and_resumes(tmp_path):
    # Of drawn cohorts of eight clients one in twenty is too small for a sum.
    everybody = [*MINE, "privacy.sampling_rate=1", "run.num_rounds=2"]
    run(tmp_path / "run", [*everybody, "run.stop_after_round=1"])
    records = run(tmp_path / "run", everybody, resume=True)
    assert [record.round for record in records] == [1, 2]
    assert not any(record.failures for record in records)
    assert np.isfinite(final_model(tmp_path / "run")).all()


@pytest.mark.parametrize(
    ("entry_points", "overrides", "message"),
    [
        (
            {"gdpfed.methods": {"mine": "math:pi"}},
            ["method=mine"],
            "method 'mine' has config_class None: make it a",
        ),
        ({"gdpfed.methods": {"mine": "nowhere:Mine"}}, ["method=mine"], "cannot be loaded from nowhere:Mine"),
        ({"gdpfed.methods": {"mine": "nowhere:Mine"}}, ["method=min"], "method=min is not known: use ali_"),
        (
            {"gdpfed.methods": {"pfa": "math:pi"}},
            ["method=pfa"],
            "once (gdpfed itself, package my-extension): keep one",
        ),
        ({"gdpfed.conf": {"mine": "math"}}, [], "not a package: name the package whose directory"),
        ({"gdpfed.conf": {"mine": "conf"}}, ["method=pfa"], "rename one of them"),
    ],
)
def test_what_cannot_be_used_is_told_in_one_line(tmp_path, monkeypatch, entry_points, overrides, message):
    install(tmp_path, monkeypatch, entry_points)
    with pytest.raises(ConfigError) as raised:
        load(overrides)
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


RINGS, MOMENTUM = "dataset/rings.yaml", "method/server_momentum.yaml"


@pytest.mark.parametrize(
    ("file", "before", "after", "message"),
    [
        (RINGS, "momentum: 0.0", "sampling_ratio: 2", "'dataset.sampling_ratio' is not known; did you mean"),
        (MOMENTUM, "server_momentum: 0.9", "momentum: 1", "'method.momentum' is not known"),
        (RINGS, "- schema", "- scheme", "among its defaults 'scheme' is not known: use schema"),
        (
            MOMENTUM,
            "- schema_server_momentum",
            "- schema_server_momentu",
            "among its defaults 'schema_server_momentu' is not known; did you mean schema_server_momentum?",
        ),
        (MOMENTUM, "server_momentum: 0.9", "server_momentum: x", "method.server_momentum: Value 'x' of type"),
    ],
)
def test_an_option_file_that_does_not_fit_is_one_line(extension, monkeypatch, file, before, after, message):
    for name in [each for each in sys.modules if each.partition(".")[0] == "my_extension"]:
        monkeypatch.delitem(sys.modules, name)  # Its folder was that of another test.
    path = extension / "my_extension" / "conf" / file
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))
    with pytest.raises(ConfigError) as raised:
        load([*MINE, "run.seed=1"])
    assert str(raised.value).startswith(f"{path}: ")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
