"""Tests of adaptive clipping: its cost in the plan, what a client sends, and how the norms change."""

import json
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from conf.load import load
from gdpfed.audit.run_audit import audit_run
from gdpfed.clients.order import OrderError
from gdpfed.clients.update import contribution_steps, update_steps
from gdpfed.clients.works import Job
from gdpfed.errors import ConfigError, PrivacyError
from gdpfed.learning.training.local_update import with_indicator
from gdpfed.methods import make_method
from gdpfed.methods.base import ClientSum
from gdpfed.rounds.extensions.adaptive_clipping import NormFactor
from gdpfed.rounds.extensions.base import Extensions
from gdpfed.rounds.run import PreparedRun
from gdpfed.runs.round_log import read_rounds
from gdpfed.simulation import simulate
from gdpfed.simulation.batched import contributions_steps
from gdpfed.simulation.engine import Cohort
from secagg import Contributors, Encoding
from testing.local_grid import refusals
from testing.small_runs import NUM_CLIENTS, grid_of_owners, nothing_drawn, run, small_config
from tests.simulation.small_cohorts import order_of

ADAPTIVE = "privacy.clipping=adaptive"
SMALL = (
    "privacy.accountant=rdp",
    "dataset.num_clients=120",
    "privacy.sampling_rate=0.3",
    "privacy.delta=5e-3",
)
# So few clients have so much noise that the fraction can only be roughly told.
FEW = [ADAPTIVE, "privacy.clipping_noise=1", "method=gdpfed_star"]
METHODS = ("gdpfed_star", "dp_fedavg", "idp_fedavg_scale", "idp_fedavg_sample")


def planned(method, *overrides):
    return make_method(load([f"method={method}", *SMALL, *overrides]))


@pytest.mark.parametrize("method", METHODS)
def test_the_noise_multiplier_of_updates_is_the_papers_and_every_epsilon_is_as_planned(method):
    fixed, adaptive = planned(method), planned(method, ADAPTIVE, "privacy.clipping_noise=0.1")
    rho, kept = adaptive.plan.adaptive_clipping.indicator_share, adaptive.plan.adaptive_clipping.update_share
    norms = []
    for before, after in zip(fixed.plan.groups, adaptive.plan.groups, strict=True):
        z, own = before.noise_multiplier, after.clipping_norm * kept
        norms.append(own)
        assert after.epsilon_accounted == before.epsilon_accounted
        assert after.noise_stddev / after.clipping_norm == pytest.approx(z, rel=1e-12)
        # arXiv:1905.03871, Theorem 1, with the noise of a count of clients of this norm.
        sigma_b = after.noise_stddev / (2 * rho * after.clipping_norm)
        assert after.noise_stddev / own == pytest.approx((z**-2 - (2 * sigma_b) ** -2) ** -0.5, rel=1e-9)
        assert own == pytest.approx(before.clipping_norm, rel=1e-12)
    more = adaptive.weighting.noise_per_step(adaptive.plan) / fixed.weighting.noise_per_step(fixed.plan)
    assert more == pytest.approx(1 / math.sqrt(1 - rho**2), rel=1e-12)
    heard = sum(each.expected_cohort_size * each.clipping_norm for each in adaptive.plan.groups)
    assert adaptive.plan.groups[0].noise_stddev / (2 * rho * heard) == pytest.approx(0.1, rel=1e-12)


def test_the_plan_says_it_and_plans_without_it_are_as_they_were():
    described = planned("gdpfed_star", ADAPTIVE).describe()
    assert described["adaptive_clipping"]["quantile"] == 0.5
    assert "adaptive_clipping" not in planned("gdpfed_star").describe()


@pytest.mark.parametrize("method", ["gdpfed", "gdpfed_plus", "pfa", "fedavg"])
def test_several_sums_are_refused(method):
    with pytest.raises(ConfigError, match=rf"method={method}: .* must have one sum, as dp_fedavg, .* have"):
        planned(method, ADAPTIVE)


def test_a_fraction_that_would_take_the_budget_is_refused_and_the_named_remedy_works():
    with pytest.raises(PrivacyError, match=r"use privacy.clipping_noise=") as refused:
        planned("dp_fedavg", ADAPTIVE, "privacy.clipping_noise=1e-3")
    remedy = str(refused.value).partition("use privacy.")[2].partition(" ")[0]
    assert planned("dp_fedavg", ADAPTIVE, f"privacy.{remedy}").plan.adaptive_clipping.update_share > 0.7


@pytest.mark.parametrize(
    "wrong", ["clipping=often", "clipping_quantile=1", "clipping_learning_rate=0", "clipping_noise=0"]
)
def test_settings_that_are_none(wrong):
    with pytest.raises(ConfigError, match=f"privacy.{wrong.partition('=')[0]}="):
        load([f"privacy.{wrong}"])


def test_records_have_no_adaptive_clipping():
    with pytest.raises(ConfigError, match=r"privacy.clipping=adaptive does not go with privacy.unit=record"):
        load(["privacy=record_level", "method=dp_sum", ADAPTIVE])


def test_every_contribution_is_within_its_bound_and_says_on_which_side_the_update_was():
    rng = np.random.default_rng(0)
    updates = torch.from_numpy(rng.normal(size=(6, 40)))
    updates *= torch.tensor([[0.0], [1e-3], [0.1], [1.0], [1e9], [math.nan]])
    bounds = torch.tensor([[1.0], [0.2], [5.0], [2.0], [2.0], [2.0]], dtype=torch.float64)
    sent = with_indicator(updates.clone(), bounds, 0.6).numpy()
    norms = np.linalg.norm(updates.numpy(), axis=1)
    for row, update, norm, (bound,) in zip(sent, updates.numpy(), norms, bounds.tolist(), strict=True):
        within = bool(norm <= 0.8 * bound)
        assert row[-1] == pytest.approx(0.6 * bound * (1 if within else -1), rel=1e-12)
        assert np.linalg.norm(row) <= bound * (1 + 1e-12)
        if within:
            np.testing.assert_allclose(row[:-1], update)
        elif math.isfinite(norm):
            np.testing.assert_allclose(row[:-1], update * 0.8 * bound / norm)
        else:
            assert not row[:-1].any()


def test_many_at_once_send_what_each_would(tmp_path):
    prepared = PreparedRun.of(small_config(tmp_path, FEW))
    order = replace(prepared.order, norm_factor=0.5, indicator_share=0.3)
    encoding = Encoding.for_sum(Contributors(9), dimension=31, clipping_norm=2.0, noise_multiplier=1.0)
    updates = torch.from_numpy(np.random.default_rng(1).normal(size=(4, 30)) * [[0.1], [1], [3], [0]])
    together = contributions_steps(updates.clone(), order, Cohort(range(4), encoding), range(4)).numpy()
    for steps, update in zip(together, updates, strict=True):
        alone = contribution_steps(order, update, encoding)
        assert np.abs(steps - alone).max() <= 1
        assert encoding.grid * np.linalg.norm(alone.astype(float)) <= 2.0
    # In units of the factor: 0.5 of it is a bound of 1.
    first = encoding.grid * together[0, :-1]
    np.testing.assert_allclose(first, updates[0] / 0.5, atol=encoding.grid)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"norm_factor": 0.0}, "norm_factor is 0.0"),
        ({"norm_factor": math.nan}, "norm_factor is nan"),
        ({"indicator_share": 1.0}, "indicator_share is 1.0"),
        ({"indicator_share": 0.5, "work": "gradient_sum"}, "gradient_sum does not go with adaptive clipping"),
    ],
)
def test_a_client_refuses_an_order_of_odd_numbers(tmp_path, changed, said):
    prepared = PreparedRun.of(small_config(tmp_path))
    encoding = Encoding.for_sum(Contributors(9), dimension=651, clipping_norm=2.0, noise_multiplier=1.0)
    with pytest.raises(OrderError, match=said):
        update_steps(Job(replace(prepared.order, **changed), np.zeros(650, np.float32), encoding, 0))


def norm_of(factor):
    assert factor.clipping_norm is not None
    return factor.clipping_norm


def test_the_norms_go_to_the_quantile():
    plan = planned("gdpfed_star", ADAPTIVE, "privacy.clipping_quantile=0.3", "privacy.clipping_norm=50").plan
    sizes = np.random.default_rng(2).lognormal(size=120)
    heard = sum(group.expected_cohort_size * group.clipping_norm for group in plan.groups)
    order = order_of("linear")
    share, factor = plan.adaptive_clipping.indicator_share, NormFactor(plan)
    for _ in range(80):
        within = np.mean(sizes <= norm_of(factor))
        total = np.append(np.ones(4), (2 * within - 1) * share * heard)
        (taken,) = factor.taken(order, [ClientSum("all groups", total, 30)])
        assert factor.fraction == pytest.approx(within)
    assert np.mean(sizes <= norm_of(factor)) == pytest.approx(0.3, abs=0.02)
    assert taken.total is not None
    np.testing.assert_allclose(taken.total, np.full(4, norm_of(factor) / 50), rtol=0.02)


def test_without_a_sum_the_norms_stay():
    factor = NormFactor(planned("gdpfed_star", ADAPTIVE).plan)
    factor.taken(order_of("linear"), [ClientSum("all groups", None, 0, "too few")])
    assert (factor.clipping_norm, factor.fraction) == (2.0, None)


def next_norm(norm, fraction):
    return norm * math.exp(-0.2 * (fraction - 0.5))


@pytest.mark.parametrize("secagg", ["off", "pairwise"])
def test_in_a_run_every_norm_follows_from_what_was_released(tmp_path, secagg):
    config = small_config(tmp_path / "run", [*FEW, f"secagg={secagg}", "privacy.budgets=[20,30,40]"])
    with nothing_drawn():
        simulate(config)
    norms = [(each.clipping_norm, each.fraction_within) for each in read_rounds(tmp_path / "run")]
    assert norms[0][0] == 2.0
    for (before, fraction), (after, _) in pairwise(norms):
        assert after == pytest.approx(next_norm(before, fraction), rel=1e-12)
    assert audit_run(tmp_path / "run").findings == ()


def test_nodes_with_budgets_of_their_own_agree_and_keys_are_agreed_ahead(tmp_path):
    grid = grid_of_owners(tmp_path / "ledgers", [3.0] * NUM_CLIENTS)
    overrides = [*FEW, "privacy.budgets=clients", "privacy.num_groups=1", "privacy.noise=discrete_gaussian"]
    records = run(tmp_path / "run", overrides, grid=grid)
    assert refusals(grid) == []
    assert [len(each.survivors) for each in records] == [1, 1, 1]
    assert audit_run(tmp_path / "run").findings == ()


def test_a_resumed_run_goes_on_with_its_factor(tmp_path):
    run(tmp_path / "run", [*FEW, "run.stop_after_round=2"])
    records = run(tmp_path / "run", resume=True)
    before, after = records[1:]
    expected = next_norm(before.clipping_norm, before.fraction_within)
    assert after.clipping_norm == pytest.approx(expected, rel=1e-12)
    assert audit_run(tmp_path / "run").findings == ()


def test_a_checkpoint_of_another_kind_of_clipping_is_refused():
    adaptive = Extensions([NormFactor(planned("gdpfed_star", ADAPTIVE).plan)])
    assert adaptive.restore(adaptive.state_dict(), 1) == {}
    with pytest.raises(ValueError, match="factor of the clipping norms"):
        adaptive.restore({}, 1)
    with pytest.raises(
        ValueError, match=r"gdpfed_star keeps no state in a checkpoint, but found clipping\.factor"
    ):
        planned("gdpfed_star").load_state_dict(adaptive.state_dict())
    with pytest.raises(PrivacyError, match="fixed, and have no factor"):
        NormFactor(planned("gdpfed_star").plan)


def test_an_audit_finds_a_norm_that_follows_from_nothing(tmp_path):
    run(tmp_path / "run", FEW)
    path = tmp_path / "run" / "rounds.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    records[1]["clipping_norm"] *= 1.01
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    sealed, finding = audit_run(tmp_path / "run").findings
    assert sealed.startswith("rounds.jsonl is not the file that the run wrote")
    assert finding.startswith("round 2 has clipping norm")
