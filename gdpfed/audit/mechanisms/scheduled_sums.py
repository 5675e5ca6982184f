"""Audit of runs with scheduled rounds (turns): recompute their privacy cost, and check who took part when.

With N the matrix of the taps below its diagonal, C = (I - N)^-1 and e_pi 1 in the turns pi of a client, it
pays for one Gaussian mechanism of mu = distance C_m |C e_pi| / s, with rows of the released rounds alone.
"""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache
from itertools import pairwise
from typing import Any

import numpy as np

from gdpfed.audit.accounting import Charges, SampledSums, epsilon_against_server
from gdpfed.audit.known_noise import part_left
from gdpfed.audit.mechanisms.sampled_sums import SumEntry
from gdpfed.audit.node_audit import NodeEntry, NodeRunAudit
from gdpfed.audit.rules import AuditRule, GroupAudit, MostSpent, or_infinite
from gdpfed.audit.tolerances import ROUNDING, SAME_FIGURE
from gdpfed.audit.unseen_objects import UPDATES, is_of_package


class ScheduledSumsRule(AuditRule):
    """Audits runs that schedule each client's rounds (turns), from which the client's epsilon follows."""

    entries = frozenset({"turns"})
    kinds = frozenset({"correlated_gaussian"})

    @property
    def free_settings(self) -> Collection[str]:
        return ("sampling", "sampling_rate")

    @property
    def asked(self) -> Mapping[str, Any]:
        updates = [work for work in self.plan["works"] if work in UPDATES or is_of_package(work)]
        return {"sampling": "scheduled", "sums_per_round": 1, "works": updates or ["update"]}

    def groups(self) -> Iterator[GroupAudit]:
        charged, rounds = self.files.ledger["charged_rounds"], self.files.rounds
        for index, group in enumerate(self.plan["groups"]):
            most = self._most_spent(index, charged)
            yield GroupAudit(
                group=index,
                clients=group["clients"],
                budget=or_infinite(group["epsilon"]) * (1 + ROUNDING),
                planned=self._epsilon(index, self._densest(index, self.plan["num_rounds"])),
                spent=self._epsilon(index, self._densest(index, charged), charged),
                recorded=or_infinite(rounds[-1]["spent_epsilon"][index]) if rounds else None,
                against_server=self._seen(most.epsilon),
                against_members=self._epsilon(index, most.turns, charged, part_left(self.files, index)),
                most_rounds=max(map(len, self._taken[index].values()), default=0),
                most_spent=most,
            )

    def check_plan(self) -> Iterator[str]:
        plan, privacy = self.plan, self.files.config["privacy"]
        if privacy["against"] != "everyone":
            yield f"plan.json has turns, and the configuration privacy.against={privacy['against']}"
        sent = math.fsum(
            each["clients"] * each["turns"]["most_turns"] / self._period(index)
            for index, each in enumerate(plan["groups"])
        )
        clients = sum(group["clients"] for group in plan["groups"])
        if not _same(plan["sampling_rate"], sent / clients):
            yield f"plan.json has sampling_rate {plan['sampling_rate']}, which its turns do not make"
        if plan["sampling_rate"] > privacy["sampling_rate"] * (1 + ROUNDING):
            asked = privacy["sampling_rate"]
            yield f"plan.json has more turns than sampling_rate {asked} gives: {plan['sampling_rate']:.6g}"
        noise = [self.planned_noise(index, 1, 1) for index in range(len(plan["groups"]))]
        differ = max(noise) > min(noise) * (1 + ROUNDING) or len(set(map(_taps, plan["groups"]))) > 1
        if plan["one_sum"] and differ:
            yield "plan.json has groups in one sum with different noise or taps"
        for index in range(len(plan["groups"])):
            yield from self._check_limits(index)

    def _check_limits(self, index: int) -> Iterator[str]:
        """Check that scheduled rounds (turns) fit into the run, and that early, dense turns cost the most."""
        group, num_rounds = self.plan["groups"][index], self.plan["num_rounds"]
        turns, apart, taps = group["turns"]["most_turns"], group["turns"]["separation"], _taps(group)
        if min(turns, apart) < 1 or (turns - 1) * apart >= num_rounds:
            yield f"{turns} turns of group {index}, {apart} apart, are not within {num_rounds} rounds"
        if len(taps) != self.files.config["privacy"]["noise_taps"]:
            yield f"plan.json has the taps {taps}, another number than the configuration"
        weights = _strategy(taps, num_rounds)[:, 0]
        rising = any(np.any(np.diff(each) > ROUNDING) for each in (taps, weights))
        if rising or min(taps, default=0.0) < 0:
            yield f"under the taps {taps} of group {index} the earliest and densest turns need not cost most"

    def check_ledger(self, index: int) -> Iterator[str]:
        """Do nothing: single scheduled rounds have no own cost, and `check_charges` checks the ledger."""
        yield from ()

    def check_charges(self, index: int) -> Iterator[str]:
        plan, group = self.plan, self.plan["groups"][index]
        charged = self.files.ledger["charged_rounds"]
        for name, charges, rounds in (
            ("plan.json", group["charges"], plan["num_rounds"]),
            ("the ledger", self.files.ledger["charges"][index], charged),
        ):
            expected = [self._charge(index, rounds)] if rounds else []
            if [{**charge, "event": _numbers(charge["event"])} for charge in charges] != expected:
                yield f"the charges of group {index} in {name} are not those of its turns in {rounds} rounds"

    def _charge(self, index: int, rounds: int) -> dict[str, Any]:
        """Compute a group's privacy cost for the first `rounds` rounds from its noise, norm and schedule."""
        group = self.plan["groups"][index]
        norm = group.get("clipping_norm", self.plan["clipping_norm"])
        event = {
            "kind": "correlated_gaussian",
            "noise_stddev": group["noise_multiplier"] * norm,
            "clipping_norm": norm,
            "adjacency": self.plan["adjacency"],
            "noise": "gaussian",
            "num_rounds": rounds,
            "turns": self._densest(index, rounds),
            "taps": group["turns"]["taps"],
        }
        return {"event": _numbers(event), "count": 1, "unit": "client"}

    def check_figures(self, index: int) -> Iterator[str]:
        plan, group = self.plan, self.plan["groups"][index]
        turns, num_rounds = group["turns"]["most_turns"], plan["num_rounds"]
        cost = self._epsilon(index, self._densest(index, num_rounds))
        exact = {
            "epsilon_accounted": cost,
            "epsilon_against_members": cost,
            "epsilon_against_server": self._seen(cost),
            "participations_p99": turns,
            "sampling_rate": turns / self._period(index),
            "expected_cohort_size": group["clients"] * turns / self._period(index),
            "noise_variance_multiplier": group["noise_multiplier"] ** 2,
        }
        for key, value in exact.items():
            if not _same(or_infinite(group[key]), value):
                yield f"plan.json has {key} {group[key]} of group {index}, where {value:.6g} follows"

    @cached_property
    def _taken(self) -> list[dict[int, list[int]]]:
        """By group, the rounds in which each client took part, from rounds.jsonl or, if later, the ledger."""
        ledger, logged = self.files.ledger, len(self.files.rounds)
        taken: list[dict[int, list[int]]] = [{} for _ in self.plan["groups"]]
        for record in self.files.rounds:
            for turns, clients in zip(taken, record["turns"], strict=True):
                for client in clients:
                    turns.setdefault(client, []).append(record["round"] - 1)
        for turns, counted in zip(taken, ledger["participations"], strict=True):
            for client in counted:
                late = [turn for turn in ledger["taken"].get(client, ()) if turn >= logged]
                if late:
                    turns.setdefault(int(client), []).extend(late)
        return taken

    def check_participations(self, index: int) -> Iterator[str]:
        """Check that log and ledger agree on each client's rounds, and that the plan allows these rounds."""
        ledger, limits = self.files.ledger, self.plan["groups"][index]["turns"]
        counted = {int(client): count for client, count in ledger["participations"][index].items()}
        for client in sorted(counted.keys() | self._taken[index].keys()):
            turns, kept = self._taken[index].get(client, []), ledger["taken"].get(str(client), [])
            if turns != kept or len(turns) != counted.get(client, 0) or turns != sorted(set(turns)):
                yield (
                    f"the ledger counts {counted.get(client, 0)} turns of client {client}, {kept}, and "
                    f"rounds.jsonl has {turns}"
                )
                return
            if not 0 <= turns[0] <= turns[-1] < ledger["charged_rounds"]:
                yield f"the ledger has client {client} in rounds {turns}, which are not all charged"
                return
            nearest = min(np.diff(turns), default=limits["separation"])
            if len(turns) > limits["most_turns"] or nearest < limits["separation"]:
                yield (
                    f"client {client} of group {index} has had the turns {turns}, and may have "
                    f"{limits['most_turns']}, {limits['separation']} rounds apart"
                )
                return
        known = set().union(*map(set, ledger["participations"]))
        if index == 0 and set(ledger["taken"]) != known:
            yield "the ledger has turns of clients that it does not count"
        for record in self.files.rounds:
            asked, named = record["cohort_sizes"][index], len(record["turns"][index])
            if asked != named:
                yield f"round {record['round']} asked {asked} clients of group {index}, and names {named}"
                return

    def check_log(self, index: int) -> Iterator[str]:
        """Check that clients subtracted only planned parts of their own earlier noise, and no part twice."""
        taps, turns = _taps(self.plan["groups"][index]), self._taken[index]
        seen: set[tuple[int, int, int]] = set()
        for record in self.files.rounds:
            for client, turn in (pair for each in record.get("taken_back", ()) for pair in each):
                if client not in turns:
                    continue
                lag = record["round"] - turn
                due = 1 <= lag <= len(taps) and taps[lag - 1] > 0 and turn - 1 in turns[client]
                if not due or (client, turn, lag) in seen:
                    yield (
                        f"client {client} of group {index} took back noise of round {turn} in round "
                        f"{record['round']}, which was not due once"
                    )
                    return
                seen.add((client, turn, lag))

    def check_recorded(self, group: GroupAudit) -> Iterator[str]:
        index = group.group
        for record in self.files.rounds:
            rounds = record["round"]
            for key, computed in (
                ("spent_epsilon", self._epsilon(index, self._densest(index, rounds), rounds)),
                ("epsilon_against_server", self._seen(self._most_spent(index, rounds).epsilon)),
            ):
                recorded = or_infinite(record[key][index])
                if not _same(recorded, computed):
                    yield (
                        f"round {rounds} records {key} {recorded:.6g} of group {index}, where {computed:.6g} "
                        "follows from the turns"
                    )
                    return

    def _period(self, index: int) -> int:
        """Return the schedule's length: the run's rounds, or more if these are too few for all clients."""
        group, num_rounds = self.plan["groups"][index], int(self.plan["num_rounds"])
        if group["turns"]["most_turns"] > 1:
            return num_rounds
        rate: float = group["sampling_rate"]
        return max(num_rounds, round(1 / rate))

    def kept_noise(self, index: int) -> float:
        """Return the fraction of noise left in the sum of all rounds after clients subtracted parts of it."""
        rounds = self.plan["num_rounds"]
        left = np.linalg.inv(_strategy(_taps(self.plan["groups"][index]), rounds)).sum(axis=0)
        return float(np.linalg.norm(left)) / math.sqrt(rounds)

    def planned_noise(self, index: int, round_number: int, size: int) -> float:
        return float(self.plan["groups"][index]["charges"][0]["event"]["noise_stddev"])

    def _densest(self, index: int, rounds: int) -> list[int]:
        limits = self.plan["groups"][index]["turns"]
        turns = [number * limits["separation"] for number in range(limits["most_turns"])]
        return [turn for turn in turns if turn < rounds]

    def _most_spent(self, index: int, rounds: int) -> MostSpent:
        """Find the client of a group whose rounds so far have the largest privacy cost."""
        group = self.plan["groups"][index]
        first_with: dict[tuple[int, ...], int] = {}
        for client, taken in self._taken[index].items():
            first_with.setdefault(tuple(turn for turn in taken if turn < rounds), client)
        first_with.pop((), None)
        if not first_with:
            return MostSpent(None, (), self._epsilon(index, (), rounds))
        turns = max(first_with, key=lambda each: moved_by(_taps(group), each, rounds))
        epsilon = self._epsilon(index, turns, rounds)
        return MostSpent(first_with[turns], tuple(turn + 1 for turn in turns), epsilon)

    def _seen(self, epsilon: float) -> float:
        """Return the given epsilon, or infinity if the server sees single clients' updates."""
        return epsilon if self.plan["sums_hidden"] or not epsilon else math.inf

    def _epsilon(
        self, index: int, turns: Sequence[int], rounds: int | None = None, left: float = 1.0
    ) -> float:
        plan, group = self.plan, self.plan["groups"][index]
        sigma, released = group["noise_multiplier"] * left, plan["num_rounds"] if rounds is None else rounds
        cost = as_one_sum(_taps(group), sigma, plan["adjacency"], turns, released)
        return epsilon_against_server([*self.paid_first, *cost], self.plan["delta"])


def as_one_sum(
    taps: Sequence[float], noise_multiplier: float, adjacency: str, turns: Sequence[int], rounds: int
) -> Charges:
    """Return one Gaussian release with the privacy cost of these rounds (turns); [] if there are none.

    ``noise_multiplier`` is s over the norm of a turn.
    """
    if not turns:
        return []
    sigma = noise_multiplier / moved_by(taps, turns, rounds)
    return [(SampledSums("poisson", 1.0, 1, adjacency, "gaussian", sigma), 1)]


def moved_by(taps: Sequence[float], turns: Sequence[int], rounds: int) -> float:
    """Return the sensitivity of all noise-whitened sums to updates of norm 1 in the rounds ``turns``."""
    chosen = np.zeros(rounds)
    chosen[list(turns)] = 1.0
    return float(np.linalg.norm(_strategy(tuple(taps), rounds) @ chosen))


def _taps(group: Mapping[str, Any]) -> tuple[float, ...]:
    return tuple(group["turns"]["taps"])


@lru_cache(maxsize=256)
def _strategy(taps: tuple[float, ...], rounds: int) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Return C = (I - N)^-1; N has the noise correlations below its diagonal; shape (rounds, rounds)."""
    later = np.zeros((rounds, rounds))
    for lag, tap in enumerate(taps, start=1):
        later += tap * np.eye(rounds, k=-lag)
    return np.asarray(np.linalg.inv(np.eye(rounds) - later))


def _numbers(event: Mapping[str, Any]) -> dict[str, Any]:
    """Return a privacy event with its numbers rounded to nine digits, to compare events."""
    return {key: f"{value:.9g}" if isinstance(value, float) else value for key, value in event.items()}


def _same(stated: float, computed: float) -> bool:
    return stated == computed or math.isclose(stated, computed, rel_tol=SAME_FIGURE)


class TurnEntry(SumEntry):
    """A run in a client's ledger that limits how many rounds (turns) a client has and how close they are."""

    kinds = frozenset({"correlated_gaussian"})

    @property
    def num_rounds(self) -> int:
        return int(self.event(0)["num_rounds"])

    def updates_in(self, round_index: int) -> int:
        return 1

    @property
    def most_updates(self) -> int:
        return int(self.terms["most_turns"])

    def planned(self, last: NodeEntry, group: int) -> Charges:
        """Return the cost of the rounds so far, not of planned rounds: budgets are checked round by round."""
        event, turns = self.event(0), self.saved["rounds"]
        sigma = event["noise_stddev"] / event["clipping_norm"]
        return as_one_sum(event["taps"], sigma, event["adjacency"], turns, event["num_rounds"])

    def taken(self, last: NodeEntry, group: int) -> Charges:
        return self.planned(last, group)

    def audits(self, alike: Sequence[NodeEntry]) -> Iterator[NodeRunAudit]:
        """Audit this run with earlier runs, as one Gaussian release if all of them schedule rounds."""
        for audit in super().audits(alike):
            if all(isinstance(each, TurnEntry) for each in alike):
                taken = [release for each in alike for release in (*each.paid_first, *each.taken(self, 0))]
                yield replace(audit, epsilon=epsilon_against_server(taken, audit.delta))
            else:
                yield audit

    def check(self) -> Iterator[str]:
        yield from super().check()
        name, turns = self.terms["run"], sorted(self.saved["rounds"])
        most, apart = self.terms["most_turns"], self.terms["separation"]
        if len(turns) > most or any(later - turn < apart for turn, later in pairwise(turns)):
            yield f"run {name} had the turns {turns}, and its terms allow {most}, {apart} rounds apart"
        taps, taken_back = self.event(0)["taps"], self.saved.get("taken_back", [])
        for turn, later in taken_back:
            if turn not in turns or not 1 <= later - turn <= len(taps) or taken_back.count([turn, later]) > 1:
                yield f"run {name} took back noise of round {turn} in round {later}, which was not due once"
