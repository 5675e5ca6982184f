"""Tests of what an audit says of the code of packages, and of which names it takes for the project's."""

import shutil
from typing import Any

import pytest

import gdpfed.learning.task  # noqa: F401, which registers data sets, models and metrics
from gdpfed.audit.run_audit import audit_run
from gdpfed.audit.unseen_objects import GROUPS, own_names
from gdpfed.learning.data import DATASETS
from gdpfed.learning.data.named_partitions import OF_ONE_CLIENT, PARTITIONS
from gdpfed.learning.labels import LOSSES, METRICS
from gdpfed.learning.models.build import MODELS
from gdpfed.learning.training.client_states import CLIENT_STATES
from gdpfed.learning.training.optimizers import OPTIMIZERS, SCHEDULES
from gdpfed.methods import METHODS
from gdpfed.privacy.ledgers.terms import TERMS
from gdpfed.registry import Registry, is_ours
from gdpfed.report.run_observers import default_observers
from gdpfed.simulation import simulate
from testing.forged import edit_json, renew
from testing.package_of_others import write_package
from testing.small_runs import nothing_drawn, small_config

REGISTRIES: dict[str, Registry[Any]] = {
    "method": METHODS,
    "data set": DATASETS,
    "model": MODELS,
    "loss": LOSSES,
    "partition": PARTITIONS,
    "metric": METRICS,
    "optimizer": OPTIMIZERS,
    "schedule": SCHEDULES,
    "client state": CLIENT_STATES,
}
WITHOUT_A_REGISTRY = {"partition": {*OF_ONE_CLIENT}}
SETTINGS = (
    *("privacy.against=outsiders", "privacy.accountant=pld", "privacy.budgets=[2]", "run.num_rounds=2"),
    *("privacy.sampling_rate=1", "dataset.num_clients=6", "simulation.workers=1"),
)
OF_A_PACKAGE = ("method=halving", "dataset=halves", "run.extensions={half_time:{}}")


@pytest.mark.parametrize("kind", sorted(REGISTRIES))
def test_the_audit_knows_the_names_of_the_project(kind):
    registry = REGISTRIES[kind]
    assert registry.entry_point_group == GROUPS[kind]
    ours = {point.name for point in registry._built_in} | {
        name for name, item in registry._items.items() if kind not in ("method", "model") or is_ours(item)
    }
    assert own_names(kind) == ours | WITHOUT_A_REGISTRY.get(kind, set())


def test_the_audit_knows_the_mechanisms_of_the_project():
    assert {point.name for point in TERMS._built_in} - {"local_windows"} <= own_names("mechanism")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("packages")
    with pytest.MonkeyPatch.context() as patch, nothing_drawn():
        patch.syspath_prepend(write_package(folder / "site"))
        for name, words in {"packaged": OF_A_PACKAGE, "own": ("method=gdpfed",)}.items():
            config = small_config(folder / name, [*words, *SETTINGS])
            simulate(config, make_observers=default_observers)
        yield folder


def test_whatever_is_not_the_projects_is_named(runs):
    audit = audit_run(runs / "packaged")
    assert audit.passed, audit.findings
    computed, extension, work, weights = audit.not_computed
    named = "the method halving, the data set halves, the model half_model, the loss half_loss, the extension"
    assert named in computed
    assert "what half_time did beside the rounds" in extension
    assert "what clients computed as halved: the method halving is a package's" in work
    assert "the weights of sums, their rule and the shares that top-k keeps" in weights
    assert audit_run(runs / "own").not_computed == ()


@pytest.mark.parametrize(("name", "work"), [("packaged", "update"), ("own", "halved")])
def test_no_line_goes_away_with_the_name_of_the_work(runs, tmp_path, name, work):
    """A work of another name is named for a package's method, and found for one of the project."""
    directory = shutil.copytree(runs / name, tmp_path / name)
    edit_json(directory / "plan.json", lambda plan: plan.update(works=[work]))
    renew(directory)
    audit = audit_run(directory)
    if name == "own":
        assert any(f"has the local works ['{work}'], and clients" in each for each in audit.findings)
    else:
        assert any(f"what clients computed as {work}: the method" in each for each in audit.not_computed)
