"""Tests of the published test vectors: their files are reproducible, and a second computation agrees."""

import json
import math
from decimal import Context, Decimal, localcontext
from fractions import Fraction
from hashlib import sha256
from typing import Any

import dp_accounting as dp
import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from dp_accounting.pld import PLDAccountant
from jsonschema import Draft202012Validator
from scipy import stats

from benchmarks.vectors.__main__ import KINDS, text_of
from gdpfed.audit.accounting import SampledSums, composed_epsilon, epsilon_after, epsilon_against_server
from gdpfed.audit.mechanisms.scheduled_sums import as_one_sum, moved_by
from secagg.arithmetic.discrete_gaussian import tables
from testing.project import PROJECT

FOLDER = PROJECT / "vectors"
SHAPES = {81921.6: (512, 160, 2**14), 20486.0: (512, 40, 2**14), 481.7: (40, 12, 2**11)}
# Upper bounds by privacy loss distributions are this near to each other, those of Renyi divergences less so.
LOSSES, RENYI = 2e-3, 2e-2


def read(kind: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / f"{kind}.json").read_text("utf-8"))
    return found


def cases(kind: str, beginning: str = "") -> list[Any]:
    """Return pytest parameters of all test vectors of a kind whose names start with `beginning`."""
    found = [each for each in read(kind)["cases"] if each["name"].startswith(beginning)]
    assert found
    return [pytest.param(each["given"], each["expected"], id=each["name"]) for each in found]


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_are_what_the_command_writes(kind):
    """Each published file of test vectors equals what `python -m benchmarks.vectors` writes."""
    assert (FOLDER / f"{kind}.json").read_text("utf-8") == text_of(kind)


def test_every_file_is_of_the_schema_and_others_are_not():
    schema = json.loads((FOLDER / "schema.json").read_text("utf-8"))
    Draft202012Validator.check_schema(schema)
    validator = Draft202012Validator(schema)
    assert {path.stem for path in FOLDER.iterdir()} == {*KINDS, "schema"}
    for kind in KINDS:
        whole = read(kind)
        assert list(validator.iter_errors(whole)) == []
        assert len({each["name"] for each in whole["cases"]}) == len(whole["cases"])
        changed = json.loads(json.dumps(whole))
        changed["cases"][0]["given"].popitem()
        assert not validator.is_valid(changed)
        assert not validator.is_valid(whole | {"kind": "another"})


@pytest.mark.parametrize(("given", "expected"), cases("plans", "sampled"))
def test_sampled_plans_cost_what_they_say_by_the_second_accounting(given, expected):
    delta = given["delta"]
    for group in expected["groups"]:
        sums = SampledSums(
            sampling=given["sampling"],
            sampling_rate=group["sampling_rate"],
            group_size=group["clients"],
            adjacency=given["adjacency"],
            noise=given["noise"],
            noise_multiplier=group["noise_multiplier"],
        )
        near = RENYI if given["accountant"] == "rdp" else LOSSES
        cost = epsilon_after([(sums, given["rounds"])], delta, at_most=group["budget"])
        assert cost == pytest.approx(group["epsilon"], rel=near)
        assert cost <= group["budget"] * (1 + 1e-6)
        assert group["epsilon"] > group["budget"] * (1 - LOSSES)
        seen = epsilon_against_server([(sums, group["participations"])], delta)
        assert group["epsilon_against_server"] == pytest.approx(seen, rel=1e-6)


def test_a_plan_costs_what_it_says_by_dp_accounting_alone():
    (each,) = (case for case in read("plans")["cases"] if case["name"] == "sampled: fmnist")
    for group in each["expected"]["groups"]:
        accountant = PLDAccountant(dp.NeighboringRelation.REPLACE_SPECIAL, value_discretization_interval=1e-3)
        noise = dp.GaussianDpEvent(group["noise_multiplier"])
        sampled = dp.PoissonSampledDpEvent(group["sampling_rate"], noise)
        accountant.compose(sampled, each["given"]["rounds"])
        epsilon = accountant.get_epsilon(each["given"]["delta"])
        assert epsilon == pytest.approx(group["epsilon"], rel=2e-2)


@pytest.mark.parametrize(("given", "expected"), cases("plans", "turns"))
def test_turns_cost_what_they_say_by_matrices_and_by_the_law_of_two_gaussians(given, expected):
    sent = 0
    for group in expected["groups"]:
        densest = [number * group["separation"] for number in range(group["turns"])]
        assert densest[-1] < given["rounds"]
        assert group["sensitivity"] == pytest.approx(moved_by(group["taps"], densest, given["rounds"]))
        sigma = group["noise_multiplier"]
        cost = as_one_sum(group["taps"], sigma, given["adjacency"], densest, given["rounds"])
        assert epsilon_against_server(cost, given["delta"]) == pytest.approx(group["epsilon"], rel=1e-6)
        assert group["epsilon"] <= group["budget"]
        mu = (2 if given["adjacency"] == "replace_one" else 1) * group["sensitivity"] / sigma
        assert _gaussian_delta(mu, group["epsilon"]) == pytest.approx(given["delta"], rel=1e-5)
        assert group["clipping_norm"] * sigma == pytest.approx(expected["noise_stddev"])
        sent += group["turns"] * group["clients"]
    assert sent <= max(1.0, given["sampling_rate"] * given["rounds"]) * given["clients"] + 1e-9


def _gaussian_delta(mu: float, epsilon: float) -> float:
    """Return delta of a Gaussian mechanism at mu and epsilon: Balle and Wang, arXiv:1805.06530, Theorem 8."""
    over = epsilon / mu
    return float(stats.norm.cdf(mu / 2 - over) - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - over))


@pytest.mark.parametrize(("given", "expected"), cases("noise", "law"))
def test_the_law_of_a_draw_is_the_discrete_gaussian(given, expected):
    sigma, (low, high) = given["sigma"], given["support"]
    assert low == -high
    with localcontext(Context(prec=50)):
        weights = [(Decimal(-x * x) / (2 * sigma**2)).exp() for x in range(high + 1)]
        total, unit = 2 * sum(weights, Decimal(0)) - 1, Decimal(2) ** expected["shift"]
        for x, numerator in zip(given["values"], expected["numerators"], strict=True):
            assert abs(Decimal(numerator) / unit - weights[abs(x)] / total) < Decimal(2) ** -135


@pytest.mark.parametrize(("given", "expected"), cases("noise", "noise"))
def test_noise_is_drawn_from_the_bytes_as_the_page_says(given, expected):
    """The noise published for a key equals the noise that a second program computes from this key."""
    sigma, factor, cells = SHAPES[given["integer_stddev"]]
    law, key = tables(sigma, cells), bytes.fromhex(given["key"])
    direct, alias = (
        Cipher(algorithms.AES256(key), modes.CTR(start)).encryptor()
        for start in (bytes(16), b"\x80" + bytes(15))
    )
    count = 2 * len(expected["first"])
    words = np.frombuffer(direct.update(bytes(2 * 2 * given["dimension"])), dtype="<u2")
    drawn = []
    for word in words[:count].tolist():
        value = int(law.direct[word])
        if value == -(2**15):
            cell, high, low = np.frombuffer(alias.update(bytes(24)), dtype="<u8").tolist()
            cell %= cells
            own = (high << 64) + low < (int(law.high[cell]) << 64) + int(law.low[cell])
            value = cell - cells // 2 if own else int(law.alias[cell])
        drawn.append(value)
    assert [a + factor * b for a, b in zip(drawn[::2], drawn[1::2], strict=True)] == expected["first"]
    n, variance = given["dimension"], sigma**2 * (1 + factor**2)
    assert stats.chi2.ppf(1e-6, n) < expected["sum_of_squares"] / variance < stats.chi2.isf(1e-6, n)
    assert abs(expected["sum"]) < 6 * math.sqrt(n * variance)


@pytest.mark.parametrize(("given", "expected"), cases("sums", "shares"))
def test_shares_make_the_planned_noise_of_whoever_is_left(given, expected):
    whole = (given["clipping_norm"] * given["noise_multiplier"]) ** 2
    assert expected["corrupt"] >= given["corrupt_tolerance"] * given["members"]
    assert expected["known_shares"] == max(1, expected["corrupt"])
    assert expected["shares"][-1]["contributors"] == given["members"]
    for each in expected["shares"]:
        counted = each["contributors"] - expected["dropouts"] - expected["known_shares"]
        assert each["share_stddev"] ** 2 * counted == pytest.approx(whole)
        assert each["fewest_in_the_sum"] >= counted + expected["known_shares"]


@pytest.mark.parametrize(("given", "expected"), cases("sums", "total"))
def test_a_total_is_the_sum_of_those_who_are_left(given, expected):
    modulus, grid = 2 ** expected["modulus_bits"], Fraction(expected["grid"])
    total = [0] * given["dimension"]
    for number, each in enumerate(given["contributions"]):
        assert sum(step**2 for step in each["steps"]) <= (Fraction(given["clipping_norm"]) / grid) ** 2
        for step, value in zip(each["steps"], each["update"], strict=True):
            assert abs(step - Fraction(value) / grid) < 1
        if number not in given["lost"]:
            total = [a + b + c for a, b, c in zip(total, each["steps"], each["noise"], strict=True)]
    assert [value % modulus for value in total] == expected["total"]
    centred = [(value + modulus // 2) % modulus - modulus // 2 for value in total]
    assert expected["decoded"] == pytest.approx([value * float(grid) for value in centred])
    left = given["members"] - given["dropouts"] - given["known_shares"]
    share = given["clipping_norm"] * given["noise_multiplier"] / math.sqrt(left)
    assert expected["integer_noise_stddev"] * expected["grid"] == pytest.approx(share, rel=1e-4)
    assert len(given["lost"]) <= given["dropouts"]


def test_every_published_sum_is_named_with_its_hash():
    named = {each["given"]["sum"]: each for each in read("sums")["cases"] if "sum" in each["given"]}
    path = FOLDER.parent / next(iter(named.values()))["given"]["file"]
    published = json.loads(path.read_text("utf-8"))
    assert named.keys() == published.keys()
    for name, case in named.items():
        text = json.dumps(published[name], sort_keys=True, separators=(",", ":"))
        assert case["expected"]["sha256_of_canonical_json"] == sha256(text.encode()).hexdigest()


@pytest.mark.parametrize(("given", "expected"), cases("canaries", "scores of turns"))
def test_scores_of_turns_are_log_likelihood_ratios(given, expected):
    y, norm = np.asarray(given["projections"]), given["clipping_norm"]
    rounds = y.shape[1]
    taken = np.eye(rounds)
    for lag, tap in enumerate(given["taps"], start=1):
        taken -= tap * np.eye(rounds, k=-lag)
    noise = given["noise_stddev"] ** 2 * taken @ taken.T
    for seen, turns, score in zip(y, given["turns"], expected["scores"], strict=True):
        x = norm * np.isin(np.arange(rounds), turns)
        absent = -x if given["adjacency"] == "replace_one" else 0 * x
        law = [stats.multivariate_normal(mean, noise).logpdf(seen) for mean in (x, absent)]
        assert score == pytest.approx(law[0] - law[1], rel=1e-6)


@pytest.mark.parametrize(("given", "expected"), cases("canaries", "scores of samples"))
def test_scores_of_samples_are_those_of_their_mixtures(given, expected):
    norm, q, stddev = given["clipping_norm"], given["sampling_rate"], given["noise_stddev"]
    other = -norm if given["adjacency"] == "replace_one" else 0.0
    for number, (seen, asked) in enumerate(zip(given["projections"], given["asked"], strict=True)):
        ratios = [
            math.log(
                (q * stats.norm.pdf(y, norm, stddev) + (1 - q) * stats.norm.pdf(y, 0, stddev))
                / (q * stats.norm.pdf(y, other, stddev) + (1 - q) * stats.norm.pdf(y, 0, stddev))
            )
            for y in seen
        ]
        assert expected["without_knowing_cohorts"][number] == pytest.approx(sum(ratios), rel=1e-6)
        known = sum(norm / stddev**2 * seen[index] for index in asked)
        assert expected["knowing_cohorts"][number] == pytest.approx(known, rel=1e-6)


def _p_value(given: Any, epsilon: float, delta: float) -> float:
    """Return the p-value of guesses about canaries: Steinke et al., Theorem 5.2, with exact binomials."""
    m, tried, v = given["canaries"], given["guesses"], given["correct"]
    right = 1 / (1 + math.exp(-epsilon))
    chances = [math.comb(tried, k) * right**k * (1 - right) ** (tried - k) for k in range(tried + 1)]
    pure = math.fsum(chances[v:])
    if not v or not delta:
        return min(1.0, pure)
    worst = max(math.fsum(chances[v - i : v]) / i for i in range(1, v + 1))
    return float(min(1.0, pure + 2 * m * delta * worst))


@pytest.mark.parametrize(("given", "expected"), cases("canaries", "guesses: "))
def test_p_values_and_the_epsilon_that_guesses_rule_out(given, expected):
    for epsilon, pure, approximate in zip(
        given["epsilons"], expected["p_values_at_delta_0"], expected["p_values_at_delta"], strict=True
    ):
        assert pure == pytest.approx(_p_value(given, epsilon, 0.0), rel=1e-6, abs=1e-12)
        assert approximate == pytest.approx(_p_value(given, epsilon, given["delta"]), rel=1e-6, abs=1e-12)
    found = expected["epsilon"]
    assert _p_value(given, found + 1e-3, given["delta"]) > given["significance"]
    assert not found or _p_value(given, found, given["delta"]) <= given["significance"]
    for mu, epsilon in zip(given["mus"], expected["gaussian_epsilons"], strict=True):
        assert _gaussian_delta(mu, epsilon) == pytest.approx(given["delta"], rel=1e-4)
    refuted = expected["gaussian_of_mu_is_refuted"]
    assert refuted == sorted(refuted, reverse=True)


def test_guesses_and_alarms_of_scores():
    ((given, expected),) = (each.values for each in cases("canaries", "guesses and alarms"))
    ranked = sorted(range(40), key=lambda number: (-given["scores"][number], number))
    shares = [math.ceil(share * 40) for share in (0.005, 0.01, 0.02, 0.05, 0.1, 0.2)]
    one_sided = [[count, sum(given["present"][n] for n in ranked[:count])] for count in shares]
    assert expected["guesses"][: len(shares)] == one_sided
    for true, false in expected["alarms"]:
        assert 0 <= true < 1
        assert 0 < false < 1


@pytest.mark.parametrize(("given", "expected"), cases("canaries", "Clopper"))
def test_so_many_hits_have_the_significance_at_the_bound(given, expected):
    tail = stats.binom.sf(given["hits"] - 1, given["trials"], expected["at_least"])
    assert tail == pytest.approx(given["significance"] if given["hits"] else 1.0, rel=1e-6)


@pytest.mark.parametrize(("given", "expected"), cases("canaries", "alarms: "))
def test_alarms_rule_out_the_log_of_their_ratio(given, expected):
    over = given["true_share"] - given["delta"]
    ruled_out = max(0.0, math.log(over / given["false_share"])) if over > 0 else 0.0
    assert expected["epsilon"] == pytest.approx(ruled_out, rel=1e-8)


class SecondLedger:
    """A second implementation of a client's ledger; the auditor's functions compute its epsilons."""

    def __init__(self, given: Any) -> None:
        self.runs, self.budget, self.delta = given["runs"], given["budget"], given["delta"]
        self.turns: dict[str, list[int]] = {}
        self.taken_back: set[tuple[Any, ...]] = set()
        self.lost = False

    def does(self, step: Any) -> bool:
        """Carry out a step if the ledger's rules allow the step; return whether the step is allowed."""
        what, run, index = step["do"], step["run"], step.get("round", 0)
        self.lost = self.lost or what == "put an older copy back"
        if self.lost:
            return False
        if what == "begin":
            if run in self.turns:
                return True
            fits = bool(self.epsilon(also=run) <= self.budget)
            if fits:
                self.turns[run] = []
            return fits
        if run not in self.turns:
            return False
        numbers, turns = self.runs[run], self.turns[run]
        if what == "turn":
            apart, most = numbers.get("separation", 1), numbers.get("most_turns", math.inf)
            allowed = 0 <= index < numbers["num_rounds"] and len(turns) < most
            if allowed and all(abs(index - each) >= apart for each in turns):
                turns.append(index)
                return True
            return False
        lag, part = step["in_round"] - index, (run, index, step["in_round"])
        due = index in turns and 1 <= lag <= len(numbers["taps"]) and step["in_round"] < numbers["num_rounds"]
        if not due or part in self.taken_back:
            return False
        self.taken_back.add(part)
        return True

    def epsilon(self, also: str = "", *, seen: bool = False) -> float:
        """Return the epsilon of all begun runs and of run `also`; if `seen`, only of updates sent so far."""
        if any("most_turns" in each for each in self.runs.values()):
            return epsilon_against_server(
                [each for run in {*self.turns, also} - {""} for each in self._turns_of(run, run == also)],
                self.delta,
            )
        runs = [[(self._sums(run), self.runs[run]["num_rounds"])] for run in {*self.turns, also} - {""}]
        if not seen:
            return composed_epsilon(runs, self.delta, at_most=self.budget)
        taken = [(self._sums(run), len(turns)) for run, turns in self.turns.items()]
        return epsilon_against_server(taken, self.delta)

    def _turns_of(self, run: str, densest: bool) -> Any:
        numbers = self.runs[run]
        planned = [number * numbers["separation"] for number in range(numbers["most_turns"])]
        sigma = numbers["noise_stddev"] / numbers["clipping_norm"]
        turns = planned if densest else sorted(self.turns[run])
        return as_one_sum(numbers["taps"], sigma, numbers["adjacency"], turns, numbers["num_rounds"])

    def _sums(self, run: str) -> SampledSums:
        numbers = self.runs[run]
        sigma = numbers["noise_stddev"] / numbers["clipping_norm"]
        rate, size = numbers["sampling_rate"], numbers["group_size"]
        return SampledSums(numbers["sampling"], rate, size, numbers["adjacency"], numbers["noise"], sigma)


@pytest.mark.parametrize(("given", "expected"), cases("ledgers"))
def test_a_second_ledger_refuses_the_same_steps_at_the_same_cost(given, expected):
    ledger = SecondLedger(given)
    for step, said in zip(given["steps"], expected["steps"], strict=True):
        assert ledger.does(step) is not said["refused"], step
        assert ("epsilon" in said) is not ledger.lost
        if not ledger.lost:
            assert said["epsilon"] == pytest.approx(ledger.epsilon(), rel=LOSSES)
            assert said["epsilon_against_server"] == pytest.approx(ledger.epsilon(seen=True), rel=1e-6)
