"""Methods that ask in the second round for more than their plan charges, and the errors they get.

In the first round each of them is honest, and so is what it says ahead of the second one.
"""

from dataclasses import replace
from math import inf, nan

import numpy as np

from gdpfed.methods.fedavg import DPFedAvg
from gdpfed.privacy.release import NoiseAt


class Rogue(DPFedAvg):
    """Method that is honest in the first round, and then sends what ``ask`` makes of the honest request."""

    def requests_ahead(self, theta, round_index, draw):
        return super().requests(theta, round_index, draw())

    def requests(self, theta, round_index, cohorts):
        (honest,) = super().requests(theta, round_index, cohorts)
        return [honest] if round_index == 0 else self.ask(honest)

    def ask(self, honest):
        raise NotImplementedError

    def step(self, theta, sums):
        return super().step(theta, sums[:1])


class TwiceInOneList(Rogue):
    def ask(self, honest):
        return [honest, replace(honest, name="once more")]


class TwiceInTurn(Rogue):
    def round(self, theta, round_index, cohorts, sum_updates):
        theta, sums = super().round(theta, round_index, cohorts, sum_updates)
        if round_index == 1:
            (honest,) = self.ask(DPFedAvg.requests(self, theta, round_index, cohorts)[0])
            sums += sum_updates([replace(honest, name="once more")])
        return theta, sums

    def ask(self, honest):
        return [honest]


class TwiceUnderOneName(TwiceInTurn):
    def ask(self, honest):
        half = len(honest.clients) // 2
        return [replace(honest, clients=part) for part in (honest.clients[:half], honest.clients[half:])]


class TwiceInOneSum(Rogue):
    def ask(self, honest):
        return [replace(honest, clients=np.append(honest.clients, honest.clients[0]))]


class ExtraSum(Rogue):
    def ask(self, honest):
        return [honest, replace(honest, name="statistics", work="statistics")]


class Silent(Rogue):
    def ask(self, honest):
        return [replace(honest, noise_multiplier=0.0, noise_at=NoiseAt.NOWHERE)]


class SilentClients(Rogue):
    def ask(self, honest):
        return [replace(honest, noise_multiplier=0.0)]


class NoNumberForNoise(Rogue):
    def ask(self, honest):
        return [replace(honest, noise_multiplier=nan)]


class LessNoise(Rogue):
    def ask(self, honest):
        return [replace(honest, noise_multiplier=0.999 * honest.noise_multiplier)]


class OtherNoise(Rogue):
    def ask(self, honest):
        return [replace(honest, noise="discrete_gaussian")]


def with_another(honest, plan):
    """Return the request with one client of the group more, who was not drawn."""
    others = np.setdiff1d(plan.groups[0].clients, honest.clients)
    return [replace(honest, clients=np.append(honest.clients, others[0]))]


class NotDrawn(Rogue):
    def ask(self, honest):
        return with_another(honest, self.plan)


class InNoGroup(Rogue):
    def ask(self, honest):
        return [replace(honest, clients=np.append(honest.clients, 99))]


def with_twice_the_norm(honest):
    """Return the request with twice the clipping norm, and with the plan's noise."""
    norm, sigma = honest.clipping_norm, honest.noise_multiplier
    return [replace(honest, clipping_norm=2 * norm, noise_multiplier=sigma / 2)]


class LargerNorm(Rogue):
    def ask(self, honest):
        return with_twice_the_norm(honest)


class NoNorm(Rogue):
    def ask(self, honest):
        return [replace(honest, clipping_norm=inf)]


class NoNumberForNorm(Rogue):
    def ask(self, honest):
        return [replace(honest, clipping_norm=nan)]


class NegativeNorm(Rogue):
    def ask(self, honest):
        sigma, norm = honest.noise_multiplier, honest.clipping_norm
        return [replace(honest, clipping_norm=-norm, noise_multiplier=-sigma)]


def twos(request):
    return np.full(len(request.clients), 2.0)


class HeavyWeights(Rogue):
    def ask(self, honest):
        return [replace(honest, client_weights=twos(honest))]


class HeavyWeightsInALargerSum(Rogue):
    """Method that doubles the client weights and the sum's clipping norm, and keeps the plan's noise."""

    def ask(self, honest):
        norm, sigma = honest.clipping_norm, honest.noise_multiplier
        norms = np.full(len(honest.clients), norm)
        return [
            replace(
                honest,
                clipping_norm=2 * norm,
                noise_multiplier=sigma / 2,
                client_clipping_norms=norms,
                client_weights=twos(honest),
            )
        ]


class GradientSum(Rogue):
    def ask(self, honest):
        return [replace(honest, work="gradient_sum")]


class OtherUnit(Rogue):
    def ask(self, honest):
        return [replace(honest, unit="record")]


class SameAgain(Rogue):
    """Method that repeats the first round's request, for the first round's clients, in the second round."""

    def requests(self, theta, round_index, cohorts):
        requests = super().requests(theta, round_index, cohorts)
        if round_index == 0:
            self.kept = requests[0]
        return requests

    def ask(self, honest):
        return [self.kept]


class StillAsking(DPFedAvg):
    """Method that makes its second round's request through the function that it got in the first round."""

    def round(self, theta, round_index, cohorts, sum_updates):
        if round_index == 0:
            self.kept = sum_updates
        return super().round(theta, round_index, cohorts, self.kept)


class AskingAfterwards(DPFedAvg):
    """Method that asks for half of the second cohort in time, and for the other half after the round."""

    def round(self, theta, round_index, cohorts, sum_updates):
        if round_index == 0:
            return super().round(theta, round_index, cohorts, sum_updates)
        first, self.rest = np.array_split(cohorts[0], 2)
        self.asking = sum_updates
        return super().round(theta, round_index, [first], sum_updates)

    def released(self, theta):
        if hasattr(self, "asking"):
            (honest,) = DPFedAvg.requests(self, theta, 1, [self.rest])
            self.asking([replace(honest, name="the rest")])
        return theta


class OtherPlan(Rogue):
    """Method that changes its plan to one with half the noise, and asks for what the changed plan says."""

    def ask(self, honest):
        (group,) = self.plan.groups
        (round_range,) = group.ranges
        weaker = replace(round_range, noise_multiplier=round_range.noise_multiplier / 2)
        self.plan = replace(
            self.plan,
            groups=(replace(group, ranges=(weaker,)),),
            mechanism=replace(self.plan.mechanism, sums_per_round=9),
        )
        return DPFedAvg.requests(self, honest.start, 1, [honest.clients])


class Lookalike(Rogue):
    """Method that asks with an object that has all fields of a request, but is not of its class."""

    class Request:
        def __init__(self, honest):
            self.__dict__.update(vars(honest))

    def ask(self, honest):
        return [self.Request(honest)]


class AheadOfStrangers(DPFedAvg):
    """Method that asks clients to agree on keys for the next round, with one of them not drawn for it."""

    def requests_ahead(self, theta, round_index, draw):
        (honest,) = super().requests_ahead(theta, round_index, draw)
        return with_another(honest, self.plan)


class AheadOfALargerNorm(DPFedAvg):
    def requests_ahead(self, theta, round_index, draw):
        (honest,) = super().requests_ahead(theta, round_index, draw)
        return with_twice_the_norm(honest)


AHEAD = {
    AheadOfStrangers: r"round 1, group 0: client \d+ was not drawn in this round",
    AheadOfALargerNorm: r"round 1, group 0: client \d+ may contribute a norm of 4, above the plan's 2",
}

# What each is told.
ROGUES = {
    TwiceInOneList: r"round 1, once more: client \d+ is in 1 sums of this round already",
    TwiceInTurn: r"round 1, once more: client \d+ is in 1 sums of this round already",
    TwiceUnderOneName: "round 1, group 0: the round has a sum of this name already",
    TwiceInOneSum: "round 1, group 0: a client is asked twice in one sum",
    ExtraSum: r"round 1, statistics: client \d+ is in 1 sums of this round already",
    Silent: "round 1, group 0: noise is added nowhere, and the plan's is added by every client",
    SilentClients: "round 1, group 0: noise of standard deviation 0 is below the plan's",
    NoNumberForNoise: "round 1, group 0: noise_multiplier is nan",
    LessNoise: "round 1, group 0: noise of standard deviation .* is below the plan's",
    OtherNoise: "round 1, group 0: discrete_gaussian noise is asked for, and the plan's is gaussian",
    NotDrawn: r"round 1, group 0: client \d+ was not drawn in this round",
    InNoGroup: "round 1, group 0: client 99 was not drawn in this round",
    LargerNorm: r"round 1, group 0: client \d+ may contribute a norm of 4, above the plan's 2",
    NoNorm: "round 1, group 0: noise_multiplier is .* without a clipping_norm",
    NoNumberForNorm: "round 1, group 0: clipping_norm is nan",
    NegativeNorm: "round 1, group 0: clipping_norm is -2.0; it must be above 0",
    HeavyWeights: "round 1, group 0: a client may contribute a norm of 4, above the sum's clipping_norm of 2",
    HeavyWeightsInALargerSum: r"round 1, group 0: client \d+ may contribute a norm of 4, above the plan's 2",
    GradientSum: "round 1, group 0: the plan charges update, not gradient_sum",
    OtherUnit: "round 1, group 0: the plan protects a client, not a record",
    SameAgain: r"round 1, group 0: client \d+ was not drawn in this round",
    StillAsking: "round 0, group 0: the round is not open",
    AskingAfterwards: "round 1, the rest: the round is not open",
    Lookalike: "round 1: a Request is not a request for a sum",
    OtherPlan: "round 1, group 0: noise of standard deviation .* is below the plan's",
}
