"""Measured lower bounds on epsilon beside the stated epsilon, by group, attacker and number of rounds."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from gdpfed.audit.accounting import epsilon_after, epsilon_against_server, first_rounds
from gdpfed.audit.mechanisms.scheduled_sums import as_one_sum
from gdpfed.extras.canaries.bounds import (
    NUM_ALARMS,
    NUM_SHARES,
    PrivacyCurve,
    Scores,
    alarms_of,
    best_of,
    guesses_of,
    one_run_epsilon,
    refuted_scale,
    two_gaussians_epsilon,
)
from gdpfed.extras.canaries.canary import parts_of
from gdpfed.extras.canaries.scores import (
    batch_ratio,
    known_cohorts,
    likelihood_ratio,
    most_alike,
    participations_of,
    released_model,
    under_measured_noise,
    under_planned_noise,
)
from gdpfed.extras.canaries.transcript import Transcript
from gdpfed.privacy.mechanism_options import record_groups
from gdpfed.privacy.plan import PrivacyPlan

VIEWS = ("sums", "server", "everyone", "updates", "model")
"""What is seen: all sums by who does not know the cohorts; all sums and cohorts; the same where turns are no
secret, so that both are one; every client's own update, where it is private by itself; the released model."""
# At these deltas a plan's curve is computed.
CURVE_DELTAS = (1e-6, 1e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 2e-2, 5e-2, 0.1, 0.2, 0.3, 0.45, 0.6, 0.8)
# This share of a group's canaries were asked at least as often as the server's figure is measured for.
ASKED_SO_OFTEN = 0.75


@dataclass(frozen=True, kw_only=True)
class EpsilonLowerBound:
    """A measured lower bound on a group's epsilon against one attacker, and the stated epsilon.

    Attributes:
        group, rounds: whose, by the number of the part of the plan, and after how many rounds.
        view: one of `VIEWS`.
        participations: in how many rounds the canaries took part that are counted; None where nobody knows.
        stated: epsilon at the plan's delta, as the audit computes it of the plan's charges.
        measured: the largest epsilon at that delta that is ruled out for mechanisms whose losses have the
            shape that the plan's have, at any noise. It is above what is stated where the plan's own is.
        scale: by what the plan's noise would have to be divided to explain ``measured``; above 1 the run is
            not what the plan says.
        any_law: the largest epsilon that is ruled out whatever the shape.
        estimate: of two Gaussians fitted to the scores, which is not a bound; None without scores.
        num_canaries: that were counted.
    """

    group: int
    rounds: int
    view: str
    participations: int | None
    stated: float
    measured: float
    scale: float
    any_law: float
    estimate: float | None
    num_canaries: int

    @property
    def held(self) -> bool:
        """Whether neither measured lower bound (`measured`, `any_law`) exceeds the stated epsilon."""
        return self.scale <= 1.0 and self.any_law <= self.stated


@dataclass(frozen=True)
class _Claim:
    """The epsilon stated against one attacker, and the canaries' scores by this attacker's attacks."""

    view: str
    curve: PrivacyCurve
    stated: float
    attacks: list[list[Scores]]
    participations: int | None = None

    def epsilon(self, scale: float, delta: float) -> float:
        """Return the epsilon that would be stated if the noise were divided by ``scale``."""
        own = self.curve.epsilon(delta, 1.0)
        return self.stated * self.curve.epsilon(delta, scale) / own if own > 0.0 else 0.0


def epsilon_lower_bounds(
    runs: Sequence[Transcript],
    plan: PrivacyPlan,
    marks: Sequence[int],
    significance: float,
    *,
    independent: bool,
) -> list[EpsilonLowerBound]:
    """Compute lower bounds on epsilon after the rounds in ``marks``; all hold jointly at this significance.

    ``independent`` says that canaries do not influence each other: then alarms are counted, and otherwise
    guesses, whose bounds hold however canaries depend on each other.
    """
    jobs = [(rounds, group) for rounds in marks for group in range(len(parts_of(plan)))]
    claims = [(*job, claim) for job in jobs for claim in _claims(runs, plan, *job)]
    tests = sum(len(claim.attacks) for _, _, claim in claims) * (
        NUM_SHARES + (NUM_ALARMS if independent else NUM_SHARES)
    )
    figures = (
        _lower_bound(runs, plan, rounds, group, claim, significance / max(1, tests), independent)
        for rounds, group, claim in claims
    )
    return [figure for figure in figures if figure is not None]


def views_of(plan: PrivacyPlan) -> tuple[str, ...]:
    """Return the attackers, named as in `VIEWS`, against whom a privacy plan states an epsilon."""
    if plan.mechanism.against_everyone:
        return "everyone", "model"
    sums = "updates" if plan.works == ("dp_sgd",) else "sums"
    return (sums, "model") if record_groups(plan.mechanism, 0) else (sums, "server", "model")


def _claims(runs: Sequence[Transcript], plan: PrivacyPlan, rounds: int, group: int) -> list[_Claim]:
    models = [[released_model(transcript, rounds) for transcript in runs]]
    if plan.mechanism.against_everyone:
        # Every client's rounds are scheduled: what they cost together follows from its turns.
        event = plan.charges(group)[0].event.to_dict()
        turns = [turn for turn in event["turns"] if turn < rounds]
        sigma = event["noise_stddev"] / event["clipping_norm"]
        cost = as_one_sum(event["taps"], sigma, event["adjacency"], turns, rounds)
        curve = _curve(plan.delta, lambda delta: epsilon_against_server(cost, delta))
        stated = epsilon_against_server(cost, plan.delta)
        sums = [
            [under_planned_noise(transcript, rounds) for transcript in runs],
            under_measured_noise(runs, rounds),
            [most_alike(transcript, rounds) for transcript in runs],
        ]
        return [_Claim("everyone", curve, stated, sums), _Claim("model", curve, stated, models)]
    part = parts_of(plan)[group]
    records = record_groups(plan.mechanism, part.group)
    saved = [charge.to_dict() for charge in plan.charges(part.group, record_group=part.record_group)]
    charges = first_rounds(saved, rounds)
    curve = _curve(plan.delta, lambda delta: epsilon_after(charges, delta))
    stated = epsilon_after(charges, plan.delta)
    ratio = batch_ratio if records else likelihood_ratio
    sums = [[attack(transcript, rounds) for transcript in runs] for attack in (ratio, most_alike)]
    claims = [
        _Claim(views_of(plan)[0], curve, stated, sums),
        _Claim("model", curve, stated, models),
    ]
    if records:
        # Batches are drawn in secret on the client, so knowing who was asked tells nothing more.
        return claims
    counts = np.concatenate(
        [participations_of(transcript, rounds)[transcript.canaries.groups == group] for transcript in runs]
    )
    if counts.any():
        often = max(1, int(np.quantile(counts, 1 - ASKED_SO_OFTEN, method="lower")))
        least = min((sums for sums, _ in charges), key=lambda sums: sums.noise_multiplier)
        known = [known_cohorts(transcript, rounds, often) for transcript in runs]

        def against(delta: float) -> float:
            return epsilon_against_server([(least, often)], delta)

        claims.append(_Claim("server", _curve(plan.delta, against), against(plan.delta), [known], often))
    return claims


def _curve(own_delta: float, epsilon_at: Callable[[float], float]) -> PrivacyCurve:
    deltas = (own_delta / 100, own_delta / 10, own_delta, *CURVE_DELTAS)
    return PrivacyCurve(tuple(epsilon_at(delta) for delta in deltas), deltas)


def _lower_bound(
    runs: Sequence[Transcript],
    plan: PrivacyPlan,
    rounds: int,
    group: int,
    claim: _Claim,
    significance: float,
    independent: bool,
) -> EpsilonLowerBound | None:
    """Return the best lower bound on epsilon over attacks and thresholds; None if no bound can be made."""
    counted = []
    for scores_by_run in claim.attacks:
        counted_scores, are_present = [], []
        for transcript, of_run in zip(runs, scores_by_run, strict=True):
            ours = (transcript.canaries.groups == group) & ~np.isnan(of_run)
            counted_scores.append(of_run[ours])
            are_present.append(transcript.canaries.present[ours])
        counted.append((np.concatenate(counted_scores), np.concatenate(are_present)))
    telling = [(scores, present) for scores, present in counted if present.any() and not present.all()]
    if not telling:
        return None
    if independent:
        alarms = [each for found in telling for each in alarms_of(*found, significance)]
        scale = max(each.scale(claim.curve) for each in alarms)
        any_law = max(each.epsilon(plan.delta) for each in alarms)
    else:
        guesses = [each for found in telling for each in guesses_of(*found)]
        scale = best_of(lambda each: refuted_scale(each, claim.curve, significance), guesses)
        any_law = best_of(lambda each: one_run_epsilon(each, plan.delta, significance), guesses)
    scores, present = telling[0]
    return EpsilonLowerBound(
        group=group,
        rounds=rounds,
        view=claim.view,
        participations=claim.participations,
        stated=claim.stated,
        measured=claim.epsilon(scale, plan.delta),
        scale=scale,
        any_law=any_law,
        estimate=(
            None
            if claim.view in ("sums", "updates")
            else two_gaussians_epsilon(scores[present], scores[~present], plan.delta)
        ),
        num_canaries=max(len(scores) for scores, _ in counted),
    )
