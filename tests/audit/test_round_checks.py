"""Tests of the audit's checks over all rounds: participations, cohort sizes, and clients that send zeros."""

import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from scipy import stats

from conf.load import load
from gdpfed.audit.mechanisms.sampled_sums import UNLIKELY, SampledSumsRule
from gdpfed.audit.round_checks import check_rounds
from gdpfed.audit.run_files import RunFiles
from gdpfed.methods import make_method

CLIENTS = 20
ROUNDS = 200
RATE = 0.1


def files_of(
    cohorts: Sequence[Sequence[int]], rates: Sequence[tuple[float, int]] = ((RATE, ROUNDS),), **plan: Any
) -> RunFiles:
    """Return the files of a run of one group with these cohorts; `rates` lists (sampling rate, rounds)."""
    charges = [{"count": count, "event": {"sampling_rate": rate}} for rate, count in rates]
    return RunFiles(
        config={"privacy": {}},
        plan={
            "num_rounds": ROUNDS,
            "groups": [{"clients": CLIENTS, "charges": charges}],
            "unit": "client",
            "mechanism": "sampled_sums",
            "sampling": "poisson",
            "sums_per_round": 1,
            "private": False,
        }
        | plan,
        ledger={
            "charged_rounds": len(cohorts),
            "participations": [{str(k): n for k, n in Counter(i for each in cohorts for i in each).items()}],
        },
        clients=[[(0, CLIENTS)]],
        rounds=[
            {"round": t, "cohort_sizes": [len(each)], "survivors": [len(each)], "failures": {}}
            for t, each in enumerate(cohorts, start=1)
        ],
    )


def cohorts_with(total: int) -> list[list[int]]:
    """Return ROUNDS cohorts of nearly equal size, with `total` members in all; the clients take turns."""
    members, sizes = (
        iter(range(total)),
        [(t + 1) * total // ROUNDS - t * total // ROUNDS for t in range(ROUNDS)],
    )
    return [[next(members) % CLIENTS for _ in range(size)] for size in sizes]


def favouring(times: int) -> list[list[int]]:
    """Return cohorts of two: client 0 is in the first `times` cohorts, and the other clients take turns."""
    others = iter(np.tile(np.arange(1, CLIENTS), ROUNDS).tolist())
    return [[0, next(others)] if t < times else [next(others), next(others)] for t in range(ROUNDS)]


def two_sided(total: int) -> float:
    """Return twice the smaller tail of Binomial(ROUNDS * CLIENTS, RATE) at `total`, summed term by term."""
    chances = stats.binom.pmf(np.arange(ROUNDS * CLIENTS + 1), ROUNDS * CLIENTS, RATE)
    return float(2 * min(chances[: total + 1].sum(), chances[total:].sum()))


def last_that_passes(step: int) -> int:
    """Return the largest total of participations that an audit accepts, or the smallest if `step` is -1."""
    total = round(RATE * ROUNDS * CLIENTS)
    while two_sided(total + step) >= UNLIKELY:
        total += step
    return total


def test_as_many_participations_as_the_rate_makes_are_no_finding():
    assert list(check_rounds(files_of(cohorts_with(round(RATE * ROUNDS * CLIENTS))))) == []


@pytest.mark.parametrize("step", [1, -1])
def test_cohorts_that_are_likely_one_by_one_and_not_together_are_named(step):
    bound = last_that_passes(step)
    assert list(check_rounds(files_of(cohorts_with(bound)))) == []
    (finding,) = check_rounds(files_of(cohorts_with(bound + step)))
    assert finding.startswith(f"group 0 was asked {bound + step} times in {ROUNDS} rounds; at rate 0.1 of")
    assert "about 400 are" in finding


def test_participations_are_counted_against_the_clients_in_reach():
    half = files_of(cohorts_with(ROUNDS))
    assert [each.partition(" times")[0] for each in check_rounds(half)] == ["group 0 was asked 200"]
    for record in half.rounds:
        record["reachable"] = [CLIENTS // 2]
    assert list(check_rounds(half)) == []


def test_a_cohort_of_a_fixed_size_was_drawn_while_all_could_be_reached():
    files = filled_files(np.full(ROUNDS, 2), np.zeros(ROUNDS, np.int64))
    files.plan["sampling"] = "fixed_size"
    files.rounds[1]["reachable"] = [CLIENTS - 1]
    (finding,) = check_rounds(files)
    assert finding.startswith("round 2 was drawn while 19 of 20 clients of group 0 could be reached")
    files.plan["private"] = False
    assert list(check_rounds(files)) == []


def test_a_plan_in_clear_has_no_bound_against_the_server_though_nobody_may_take_part():
    words = ["dataset=digits", "dataset.num_clients=60", "method=dp_fedavg", "privacy.sampling_rate=0.003"]
    words += ["privacy.against=outsiders", "dataset.num_rounds=3", "privacy.accountant=rdp", "secagg=off"]
    plan = json.loads(json.dumps(make_method(load(words)).plan.to_dict()))
    assert plan["groups"][0]["participations_p99"] == 0
    files = RunFiles(config={}, plan=plan, ledger={}, clients=[], rounds=[])
    assert list(SampledSumsRule(files).check_figures(0)) == []
    plan["groups"][0]["epsilon_against_server"] = 0.0
    (finding,) = SampledSumsRule(files).check_figures(0)
    assert "epsilon_against_server 0.0 of group 0, where inf follows" in finding


def test_a_client_that_took_part_far_too_often_is_named():
    """The audit names a client that took part far more often than the sampling rate makes likely."""
    chances = stats.binom.pmf(np.arange(ROUNDS + 1), ROUNDS, RATE)
    bound = max(k for k in range(ROUNDS) if chances[k:].sum() >= UNLIKELY / CLIENTS)
    for sampling in ("poisson", "fixed_size"):
        assert list(check_rounds(files_of(favouring(bound), sampling=sampling))) == []
        (finding,) = check_rounds(files_of(favouring(bound + 1), sampling=sampling))
        assert finding.startswith(
            f"the ledger counts client 0 of group 0 in {bound + 1} of 200 charged rounds; "
            "at the rates of its group about 20 "
        )


def test_rates_that_change_are_taken_together():
    """The audit compares a client's participations with the sum of the sampling rates over all rounds."""
    rates = ((1.0, 20), (RATE, ROUNDS - 20))
    early = [list(range(CLIENTS))] * 20
    assert list(check_rounds(files_of(early + cohorts_with(400)[20:], rates))) == []
    (finding,) = check_rounds(files_of(early + favouring(100)[20:], rates))
    assert "client 0 of group 0 in 100 of 200 charged rounds" in finding
    assert "about 38 " in finding


@pytest.mark.parametrize(
    ("mechanism", "entry"),
    [("record_sums", {"records": {"most_rounds": ROUNDS}}), ("own_spending", {"spending": {}})],
)
def test_who_hides_nothing_may_be_asked_in_every_round(mechanism, entry):
    files = files_of(favouring(ROUNDS), mechanism=mechanism)
    files.plan["groups"][0] |= entry
    assert list(check_rounds(files)) == []


BLOCK = 10


def allocated(cohorts: Sequence[Sequence[int]]) -> RunFiles:
    """Return the files of a run whose plan has each client take part once in every block of ten rounds."""
    files = files_of(cohorts, mechanism="allocated_sums", sampling="allocation")
    charges = [{"count": ROUNDS // BLOCK, "event": {"block_rounds": BLOCK}}]
    files.plan["groups"][0]["charges"] = charges
    files.ledger["charges"] = [charges]
    return files


def test_a_client_that_took_part_twice_in_a_block_is_found_by_the_block_and_by_its_count():
    cohorts = [[client for client in range(CLIENTS) if (client - t) % BLOCK == 0] for t in range(ROUNDS)]
    assert list(check_rounds(allocated(cohorts))) == []
    twice = [*cohorts[:25], [*cohorts[25], 0], *cohorts[26:]]
    findings = list(check_rounds(allocated(twice)))
    assert findings == [
        "the rounds 21 to 30 asked clients of group 0 21 times, and each of its 20 takes part once in them",
        "the ledger counts client 0 of group 0 in 21 rounds, and each takes part once in each of 20 blocks",
    ]
    # In another's place: no size is odd, and the ledger's count is.
    instead = [*cohorts[:25], [0, cohorts[25][1]], *cohorts[26:]]
    assert findings[1:] == list(check_rounds(allocated(instead)))


def test_a_cohort_too_small_tells_of_the_other_rounds_of_its_block():
    cohorts = [[client for client in range(CLIENTS) if (client - t) % BLOCK == 0] for t in range(ROUNDS)]
    files = allocated(cohorts)
    files.config["secagg"] = {"minimum_cohort": 2}
    assert list(check_rounds(files)) == []
    files.config["secagg"] = {"minimum_cohort": 3}
    assert list(check_rounds(files)) == [
        "round 1 has a cohort of 2 in the sum of group 0, below secagg.minimum_cohort=3: who saw that it was "
        "skipped learnt of the other rounds of its block"
    ]


Counts = npt.NDArray[np.int64]
SECAGG = {
    **{"mode": "curious", "minimum_cohort": 3, "threshold": 0.6667},
    **{"dropout_tolerance": 0.1, "corrupt_tolerance": 0.0},
}


def filled_files(drawn: Counts, filled: Counts) -> RunFiles:
    """Return a run's files for these numbers, by round, of sampled clients and of clients that send zeros."""
    turns = iter(np.tile(np.arange(CLIENTS), ROUNDS).tolist())
    cohorts = [[next(turns) for _ in range(n + more)] for n, more in zip(drawn, filled, strict=True)]
    files = files_of(cohorts)
    files.config["secagg"] = SECAGG
    event = files.plan["groups"][0]["charges"][0]["event"]
    event["noise_stddev"] = 1.0
    files.plan.update(private=True, sums_hidden=False)
    for record, more in zip(files.rounds, filled, strict=True):
        record |= {
            "filled": [int(more)],
            "reachable": [CLIENTS],
            "noise_stddevs": [1.0],
            "groups_in_sums": [[0]],
        }
    return files


def test_a_round_without_a_sum_and_a_fill_that_no_sum_needs_are_named():
    """The audit reports a round whose sum has too few members, and one where too many clients send zeros."""
    drawn = np.random.default_rng(1).binomial(CLIENTS, RATE, ROUNDS)
    filled = 10 - drawn
    assert list(check_rounds(filled_files(drawn, filled))) == []
    forged = filled_files(drawn, np.where(np.arange(ROUNDS) == 4, 0, filled))
    (finding,) = check_rounds(forged)
    assert finding.startswith(f"round 5 has a cohort of {drawn[4]} in the sum of group 0, and 20 clients")
    assert "of whom 3 make a sum: delta does not hold against those who see that there is none" in finding
    forged.rounds[4]["reachable"] = [2]
    assert list(check_rounds(forged)) == []
    (finding,) = check_rounds(filled_files(drawn, filled + (np.arange(ROUNDS) == 4)))
    named = f"round 5 has {11 - drawn[4]} clients that fill the sum of group 0, of 11: "
    assert finding == f"{named}a sum needs 10 at most"


def test_a_cohort_that_is_not_filled_far_enough_is_named():
    drawn = np.random.default_rng(1).binomial(CLIENTS, RATE, ROUNDS)
    (finding,) = check_rounds(filled_files(drawn, np.where(np.arange(ROUNDS) == 4, 7, 10) - drawn))
    assert finding.startswith("round 5 has a cohort of 7 in the sum of group 0, where 10 are asked if fewer")
    # More than 17 are drawn with a chance of 0.01 delta at most.
    same = filled_files(drawn, 17 - drawn)
    same.config["secagg"] = SECAGG | {"same_size": True}
    same.plan["delta"] = 1e-5
    assert list(check_rounds(same)) == []
    same.rounds[4]["cohort_sizes"], same.rounds[4]["filled"] = [16], [16 - int(drawn[4])]
    said = "round 5 has a cohort of 16 in the sum of group 0, where 17 are asked if fewer are drawn"
    assert any(finding.startswith(said) for finding in check_rounds(same))


@pytest.mark.parametrize("damage", [["x"], [-3], [1.5], [True], [1, 2], [2**40], {"0": 1}, 5])
def test_damaged_counts_of_those_who_fill_are_a_finding(damage):
    files = filled_files(np.full(ROUNDS, 2), np.full(ROUNDS, 8))
    files.rounds[3]["filled"] = damage
    assert f"round 4 says {damage!r} of how many clients of each group fill" in list(check_rounds(files))


def test_settings_under_which_nobody_makes_a_sum_end_the_search():
    files = filled_files(np.full(ROUNDS, 2), np.zeros(ROUNDS, dtype=np.int64))
    files.config["secagg"] = SECAGG | {"corrupt_tolerance": 1.0}
    assert not any("make a sum" in finding for finding in check_rounds(files))


def test_drawn_clients_are_not_passed_off_as_some_that_fill_nor_the_other_way():
    drawn = np.random.default_rng(1).binomial(CLIENTS, RATE, ROUNDS)
    relabelled = filled_files(drawn + 2, 8 - drawn)
    assert [each.partition(" times")[0] for each in check_rounds(relabelled)] == [
        f"group 0 was asked {int(drawn.sum()) + 2 * ROUNDS}"
    ]
    unsecret = filled_files(drawn, 10 - drawn)
    unsecret.plan["sampling"] = "fixed_size"
    more = filled_files(drawn, 10 - drawn)
    more.rounds[6]["filled"] = [11]
    for files, said in (
        (unsecret, "clients that fill, and nothing rests on a secret draw"),
        (more, "round 7 has 11 clients that fill, of 10 that were asked"),
    ):
        assert any(said in finding for finding in check_rounds(files))
