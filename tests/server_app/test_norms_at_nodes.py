"""Tests of a histogram of nodes' norms: one sum before the first round, charged once and audited."""

import json
from dataclasses import replace
from math import inf

import numpy as np
import pytest

from gdpfed.audit.node_audit import audit_node_ledger
from gdpfed.audit.once_checks import check_once
from gdpfed.audit.run_audit import audit_run
from gdpfed.audit.run_files import RunFiles
from gdpfed.federation.node.budget import BudgetRefusedError, check_terms_of_sum
from gdpfed.federation.node.ledger_file import locked_ledger
from gdpfed.methods.norm_histogram import norm_request
from gdpfed.methods.sum_parameters import parameters_of
from gdpfed.privacy.sums_once import NormHistogram
from gdpfed.rounds.extensions.norms_result import UpdateNorms
from gdpfed.rounds.run import PreparedRun
from testing.small_runs import grid_of_owners, run, small_config

SETTINGS = [
    *("dataset.num_clients=6", "privacy.budgets=[60]", "method=dp_fedavg", "privacy.accountant=pld"),
    *("privacy.sampling_rate=1", "run.num_rounds=2", "privacy.norm_histogram_share=0.5"),
    # A clipping norm that none of these updates comes near to.
    *("training.learning_rate=1e-3", "privacy.clipping_norm=50"),
]


@pytest.fixture(scope="module")
def counted(tmp_path_factory):
    """Return the folder of a run of six nodes with ledgers that paused after one round and was resumed."""
    folder = tmp_path_factory.mktemp("norms")
    grid = grid_of_owners(folder / "ledgers", [90.0] * 6)
    run(folder / "run", [*SETTINGS, "run.stop_after_round=1"], grid=grid)
    before = UpdateNorms.read(folder / "run")
    run(folder / "run", ["run.stop_after_round=null"], grid=grid, resume=True)
    assert UpdateNorms.read(folder / "run") == before
    return folder


def test_all_nodes_say_their_norms_once_and_pay_for_it(counted):
    folder = counted
    found = UpdateNorms.read(folder / "run")
    assert found is not None
    assert found.clients == 6
    assert found.within[0][0] > 0.5
    card = (folder / "run" / "model_card.md").read_text()
    assert "6 clients said before the first round how long an update of theirs is" in card
    (entry,) = json.loads((folder / "ledgers" / "2.json").read_text())["ledger"]["runs"]
    assert (entry["norm_counted"], entry["rounds"]) == (True, [0, 1])
    (audit,) = audit_node_ledger(folder / "ledgers" / "2.json").runs
    with locked_ledger(folder / "ledgers" / "2.json") as file:
        assert audit.epsilon == pytest.approx(file.ledger.epsilon(1e-3), rel=0.01)
        against_server = file.ledger.epsilon_against_server(1e-3)
        terms = file.ledger.runs[0].terms
    assert audit.against_server == pytest.approx(against_server, rel=0.01)
    assert audit.within_budget
    assert 55 < audit.epsilon <= 60
    # A node refuses the sum under less noise than it has agreed to, whatever the plan of its server says.
    prepared = PreparedRun.of(small_config(folder / "other", SETTINGS))
    asked = norm_request(prepared.method, np.zeros(650, np.float32), range(6))
    quiet = replace(asked, noise_multiplier=asked.noise_multiplier / 2)
    index, secagg = NormHistogram.index(2), prepared.config.secagg
    check_terms_of_sum(terms, index, parameters_of(secagg, "one", asked))
    with pytest.raises(BudgetRefusedError, match="noise of standard deviation"):
        check_terms_of_sum(terms, index, parameters_of(secagg, "one", quiet))
    bare = replace(
        parameters_of(secagg, "one", asked), clipping_norm=inf, noise_multiplier=0.0, noise_levels=0
    )
    with pytest.raises(BudgetRefusedError, match="noise of standard deviation 0 is below"):
        check_terms_of_sum(terms, index, bare)


def test_an_audit_names_what_was_changed(counted):
    """The audit finds each change of files: less noise, no charge, a lower epsilon, or changed counts."""
    directory = counted / "run"
    for name, change, words in (
        ("norm_histogram.json", lambda found: found.update(noise_stddev=0.01), "below the plan's"),
        ("norm_histogram.json", lambda found: found.update(clipping_norm=5.0), "the clipping norm 5.0"),
        (
            "norm_histogram.json",
            lambda found: found.update(within=[[0.1, 0.0, 0.2]] * 4),
            "follow from its counts",
        ),
        ("norm_histogram.json", lambda found: found["counts"].pop(), "4 counts of bins"),
        ("ledger.json", lambda found: found.update(norm_histogram_charged=False), "not the norm histogram"),
        ("plan.json", lambda plan: plan.pop("norm_histogram"), "no plan pays for"),
        (
            "plan.json",
            lambda plan: plan["norm_histogram"].update(epsilon=0.1),
            "has epsilon 0.1 of everybody",
        ),
        (
            "plan.json",
            lambda plan: plan["norm_histogram"]["charge"]["event"].update(clipping_norm=0.5),
            "move norms of updates by 0.5",
        ),
    ):
        text = (directory / name).read_text()
        data = json.loads(text)
        change(data)
        (directory / name).write_text(json.dumps(data))
        assert words in " ".join(check_once(RunFiles.read(directory)))
        assert not audit_run(directory).passed
        (directory / name).write_text(text)
    assert audit_run(directory).passed
