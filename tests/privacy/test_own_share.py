"""Tests of what a member of a sum sees: the noise without its own part and without those of colluders.

Computed here by counting shares and from the error function, for plans, parameters of sums and audits.
"""

import json
from contextlib import nullcontext, suppress
from math import ceil, erfc, exp, floor, sqrt
from types import SimpleNamespace
from typing import Any

import pytest

from conf.load import load
from conf.schema import SecAggConfig
from gdpfed.audit.known_noise import check_known_noise, part_left
from gdpfed.audit.run_audit import audit_run
from gdpfed.methods import make_method
from gdpfed.methods.sum_parameters import sum_parameters
from secagg import Corrections
from testing.small_runs import run


def delta_of(epsilon, mu):
    """Return delta at epsilon of one Gaussian release, for means that lie mu standard deviations apart."""

    def normal(x):
        return erfc(-x / sqrt(2)) / 2

    return normal(mu / 2 - epsilon / mu) - exp(epsilon) * normal(-mu / 2 - epsilon / mu)


def epsilon_of(mu, delta):
    low, high = 0.0, 200.0
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle, mu) > delta else (low, middle)
    return high


def left_of(share, survivors, known):
    """Return the standard deviation of the survivors' noise without the parts of `known` survivors."""
    return share * sqrt(survivors - known)


MEMBERS = [3, 4, 6, 9, 15, 40, 72]


@pytest.mark.parametrize("tolerated", [0.0, 0.1, 0.25])
@pytest.mark.parametrize("lost", [0.0, 0.1, 0.2])
@pytest.mark.parametrize("members", MEMBERS)
@pytest.mark.parametrize("mode", ["curious", "active"])
def test_whoever_drops_out_the_noise_that_others_do_not_know_is_the_plans(mode, members, lost, tolerated):
    secagg = SecAggConfig(mode=mode, dropout_tolerance=lost, corrupt_tolerance=tolerated)
    numbers: dict[str, Any] = {"label": "", "dimension": 5, "clipping_norm": 2.0, "noise_multiplier": 1.5}
    for correctors in (0, members // 2):
        known = max(1, ceil(tolerated * (members + correctors)))
        back = Corrections(correctors, 0.5 if correctors else 0.0)
        if members - floor(lost * members) - known < 1:
            continue
        few = tolerated * (members + correctors) > 0 and members + correctors < 6
        with suppress(ValueError) if few else nullcontext():
            # Among so few no threshold is out of reach of a server and as many colluders: it may be refused.
            parameters = None
            parameters = sum_parameters(secagg, num_clients=members, corrections=back, **numbers)
        if parameters is None:
            continue
        for contributed in range(parameters.fewest_updates, members + 1):
            share = parameters.client_noise_stddev(contributed)
            fewest = contributed - parameters.dropout_tolerance
            assert left_of(share, fewest, known) == pytest.approx(3.0)
            assert all(left_of(share, there, known) >= 3.0 - 1e-9 for there in range(fewest, contributed + 1))


def test_in_clear_nobody_knows_any_of_the_noise():
    numbers: dict[str, Any] = {"label": "", "dimension": 5, "clipping_norm": 2.0, "noise_multiplier": 1.5}
    parameters = sum_parameters(SecAggConfig(mode="off", dropout_tolerance=0.0), num_clients=3, **numbers)
    assert parameters.client_noise_stddev(3) * sqrt(3) == pytest.approx(3.0)


PLANS = {
    "turns": [
        "method=gdpfed_star",
        "privacy.against=everyone",
        "dataset.num_clients=12",
        "privacy.noise_taps=0",
    ],
    "a secret sample": ["method=gdpfed_star", "privacy.against=outsiders", "dataset.num_clients=12"],
}


@pytest.mark.parametrize("overrides", PLANS.values(), ids=PLANS)
@pytest.mark.parametrize("lost", [0.0, 0.2])
def test_epsilon_against_members_is_that_of_the_noise_that_one_of_them_cannot_subtract(overrides, lost):
    said = ["dataset=digits", "run.num_rounds=8", "privacy.sampling_rate=0.5", "privacy.budgets=[1,3]"]
    config = load([*said, *overrides, f"secagg.dropout_tolerance={lost}"])
    plan = make_method(config).plan
    for m, group in enumerate(plan.groups):
        most = plan.mechanism.most_rounds(m) or 4
        members = max(3, round(sum(each.expected_cohort_size for each in plan.groups)))
        parameters = sum_parameters(
            config.secagg,
            label="",
            num_clients=members,
            dimension=5,
            clipping_norm=group.clipping_norm,
            noise_multiplier=group.noise_stddev / group.clipping_norm,
        )
        survivors = members - parameters.dropout_tolerance
        left = left_of(parameters.client_noise_stddev(members), survivors, 1)
        computed = epsilon_of(sqrt(most) * group.clipping_norm / left, plan.delta)
        assert plan.epsilon_against_members(m, most) == pytest.approx(computed, rel=1e-3)


@pytest.mark.parametrize("tolerated", [0.0, 0.3])
@pytest.mark.parametrize("members", MEMBERS)
def test_the_audit_counts_the_shares_that_members_know(members, tolerated):
    known = max(1, ceil(round(tolerated * members, 9)))
    if members - known < 1:
        return
    share = 2.0 / sqrt(members - known)

    def files(stddev, survivors=members):
        record = {"round": 1, "survivors": [survivors], "noise_stddevs": [2.0], "groups_in_sums": [[0]]}
        record |= {"noise_shares": [[members, stddev]], "cohort_sizes": [members]}
        plan = {"private": True, "sums_hidden": True, "groups": [{"clients": members}]}
        config = {"secagg": {"corrupt_tolerance": tolerated, "mode": "curious"}}
        return SimpleNamespace(plan=plan, config=config, rounds=[record])

    whole = files(share)
    assert list(check_known_noise(whole, whole.rounds[0])) == []
    assert part_left(whole, 0) == 1.0
    # Shares of the whole noise divided by all members: what remains is (n - c) / n of it.
    short = files(2.0 / sqrt(members))
    assert part_left(short, 0) == pytest.approx(sqrt((members - known) / members))
    (found,) = check_known_noise(short, short.rounds[0])
    assert (
        f"leaves members of sum 0, who know their own noise, {2 * part_left(short, 0):.6g} of the 2" in found
    )
    short.rounds[0]["noise_shares"][0][0] = members - 1
    assert (
        f"has {members - 1} members in sum 0, of whom some may collude, and {members} clients were asked"
        in next(check_known_noise(short, short.rounds[0]))
    )
    del short.rounds[0]["noise_shares"]
    assert "does not say what noise" in next(check_known_noise(short, short.rounds[0]))


@pytest.mark.parametrize(
    "overrides",
    [
        ["method=dp_fedavg", "privacy.budgets=[2]"],
        ["method=dp_sum", "privacy=record_level", "training.local_steps=1"],
    ],
    ids=["clients", "records"],
)
def test_a_run_whose_members_know_too_much_is_found_with_what_it_cost(tmp_path, overrides):
    said = ["dataset.num_clients=6", "run.num_rounds=1", "privacy.sampling_rate=1.0", *overrides]
    run(tmp_path, [*said, "secagg.dropout_tolerance=0", "privacy.accountant=pld"])
    honest = audit_run(tmp_path)
    assert honest.passed, honest.findings
    assert [each.against_members for each in honest.groups] == [each.against_server for each in honest.groups]
    lines = [json.loads(line) for line in (tmp_path / "rounds.jsonl").read_text().splitlines()]
    for line in lines:
        ((members, share),) = line["noise_shares"]
        assert members == 6
        assert share * sqrt(5) == pytest.approx(line["noise_stddevs"][0])
        line["noise_shares"] = [[members, share * sqrt(5 / 6)]]
    (tmp_path / "rounds.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = audit_run(tmp_path)
    assert not found.passed
    assert any("who know their own noise" in each for each in found.findings)
    for group, before in zip(found.groups, honest.groups, strict=True):
        assert group.against_members > 1.05 * before.against_members
        assert group.against_server == before.against_server
