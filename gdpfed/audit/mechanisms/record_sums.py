"""Audit of DP-SGD on records: the plan must count the privacy cost of every step, within every budget.

Batches are drawn on the clients, whose cohorts are not accounted. So what counts is how many steps a record
pays for, at which batch rate, under which noise: X of them are within its budget, and X + 1 are not.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from operator import mul
from typing import Any

from gdpfed.audit.accounting import charges_of, first_rounds, less_noise, parties_in
from gdpfed.audit.known_noise import part_left
from gdpfed.audit.mechanisms.charged_groups import ChargedGroups
from gdpfed.audit.rules import GroupAudit, RecordAudit, or_infinite
from gdpfed.audit.tolerances import ROUNDING, SAME_FIGURE, TWO_BOUNDS

# What a plan does not look beyond.
MOST_STEPS = 10_000_000
# Rates that fit several budgets are found by halving.
SAME_RATE = 1e-3
OWN_NOISE = ("dp_sgd", "noised_update")
"""Kinds of local computation whose results have enough noise before they leave a client."""
WORKS = {
    **dict.fromkeys(("dp_sgd", "ali_dpfl", "mr_mtl"), "dp_sgd"),
    **dict.fromkeys(("dp_sum", "trees"), "gradient_sum"),
    "record_statistics": "record_statistics",
}
"""What clients compute for a sum, by method; a method of a package may have either."""


class StepsRule(ChargedGroups):
    """Audits runs that protect records, whose privacy budgets are spent on local training steps."""

    entries = frozenset({"records"})
    kinds = frozenset({"dp_sgd_steps"})
    loose = True

    @property
    def in_clear(self) -> bool:
        return not self.plan["sums_hidden"] and bool(set(self.plan["works"]) - set(OWN_NOISE))

    def records(self, index: int) -> Mapping[str, Any]:
        """Return what the plan states about the records of a client group."""
        found: Mapping[str, Any] = self.plan["groups"][index]["records"]
        return found

    def parties(self, index: int) -> int:
        """Return how many clients may have records of the same person, according to the plan."""
        return int(self.records(index).get("parties", 1))

    def cost(self, index: int, rounds: int, noise_left: float = 1.0) -> float:
        paid = first_rounds(self.plan["groups"][index]["charges"], rounds)
        return self.figure(less_noise(paid, noise_left))

    def exact(self, index: int) -> dict[str, float]:
        return {**super().exact(index), "participations_p99": self.records(index)["most_rounds"]}

    def groups(self) -> Iterator[GroupAudit]:
        for index in range(len(self.plan["groups"])):
            for number in range(len(self.records(index)["groups"])):
                yield self._group(index, number)

    def _group(self, index: int, number: int) -> GroupAudit:
        """Audit the records in record group `number` of a client group; these records share one budget."""
        files, group = self.files, self.plan["groups"][index]
        own, most = self.records(index)["groups"][number], self.most_often(index)
        saved, budget = own["charges"], or_infinite(own["epsilon"])
        cost = self.figure(first_rounds(saved, most))
        is_recorded = number == 0 and bool(files.rounds)
        return GroupAudit(
            group=index,
            clients=group["clients"],
            budget=budget,
            planned=self.figure(charges_of(saved), at_most=budget),
            spent=self.figure(first_rounds(saved, files.ledger["charged_rounds"]), at_most=budget),
            recorded=or_infinite(files.rounds[-1]["spent_epsilon"][index]) if is_recorded else None,
            against_server=math.inf if self.in_clear and most else cost,
            against_members=self.figure(less_noise(first_rounds(saved, most), part_left(files, index))),
            most_rounds=most,
            records=RecordAudit(
                number=number,
                share=own["share"],
                batch_rate=own["batch_rate"],
                steps=sum(count * sums.window_steps for sums, count in first_rounds(saved, most))
                // self.parties(index),
                steps_allowed=self.records(index)["steps_allowed"],
            ),
        )

    def planned_noise(self, index: int, round_number: int, size: int) -> float:
        return self._noise_of_record(index)

    def _noise_of_record(self, index: int) -> float:
        """Return the stddev of the noise that hides one record in a sum; 0 if every step adds its own noise.

        It is sigma C for each of the clients that one person may be at, whose variances add up.
        """
        if self.plan["works"] == ["dp_sgd"]:
            return 0.0
        records = self.records(index)
        return float(records["noise_multiplier"] * records["clipping_norm"]) * math.sqrt(self.parties(index))

    def check_plan(self) -> Iterator[str]:
        declared = self.files.declared_parties
        if self.plan.get("record_is") == "person" and not declared:
            yield "plan.json says that a person is protected, and no column of the run tells persons apart"
        yield from self._check_configured()
        for index in range(len(self.plan["groups"])):
            if self.plan["unit"] == "record" and self.parties(index) < declared:
                yield (
                    f"group {index} is charged for persons at {self.parties(index)} clients, and "
                    f"columns.yaml says that one may be at {declared}"
                )
        for index in range(len(self.plan["groups"])):
            yield from self._check_groups(index)
            yield from self._check_shares(index)
            yield from self.check_bounds(index)
            yield from self._check_noise(index)

    def _check_configured(self) -> Iterator[str]:
        """Check that batch rates and noise are as configured, or rates lower if the noise is configured."""
        config, groups = self.files.config, self.plan["groups"]
        drawn = math.fsum(
            group["clients"] * own["share"] * own["batch_rate"]
            for index, group in enumerate(groups)
            for own in self.records(index)["groups"]
        ) / sum(group["clients"] for group in groups)
        asked = config["privacy"]["batch_rate"]
        given = config["method"].get("noise_multiplier")
        # Under a given noise the rates are what the budgets admit, up to the configured one.
        if drawn > asked * (1 + SAME_RATE) or (given is None and drawn < asked * (1 - SAME_RATE)):
            yield (
                f"plan.json draws a record at a mean batch rate of {drawn:.6g}, the configuration at "
                f"{asked:g}"
            )
        for index in range(len(groups)) if given is not None else ():
            said = self.records(index)["noise_multiplier"]
            if not math.isclose(said, given, rel_tol=ROUNDING):
                yield f"plan.json has noise multiplier {said:.6g} of steps, the configuration {given:g}"

    def check_participations(self, index: int) -> Iterator[str]:
        most = self.records(index)["most_rounds"]
        for client, count in self.files.ledger["participations"][index].items():
            if count > most:
                yield f"the ledger counts client {client} in {count} rounds, and its records pay for {most}"
                return

    def _check_groups(self, index: int) -> Iterator[str]:
        """Check that each record group's privacy costs follow from its batch rate, noise and rounds."""
        group, records, num_rounds = self.plan["groups"][index], self.records(index), self.plan["num_rounds"]
        if records["groups"][0]["charges"] != group["charges"]:
            yield f"the charges of group {index} are not those of its first group of records"
        if not 1 <= records["most_rounds"] <= num_rounds:
            yield f"group {index} takes part in {records['most_rounds']} of {num_rounds} rounds"
        shape = _shape(group["charges"])
        for number, own in enumerate(records["groups"]):
            said = own["batch_rate"], records["noise_multiplier"], self.parties(index)
            events = [charge["event"] for charge in own["charges"]]
            windows = [(records.get("bound"), records.get("window_steps"))]
            if any(
                (each["batch_rate"], each["noise_multiplier"], parties_in(each)) != said for each in events
            ):
                yield (
                    f"the charges of group {index}, records {number}, are not those of batch rate "
                    f"{own['batch_rate']:.6g}, noise multiplier {records['noise_multiplier']:.6g} and "
                    f"persons at {self.parties(index)} clients in plan.json"
                )
            if any((each.get("bound"), each.get("window_steps")) not in windows for each in events):
                yield f"the charges of group {index}, records {number}, are not those of its windows of steps"
            if any(charge["unit"] != self.plan["unit"] for charge in own["charges"]):
                yield f"the charges of group {index}, records {number}, are not per {self.plan['unit']}"
            if _shape(own["charges"]) != shape:
                yield (
                    f"group {index}, records {number}, is charged for other steps than the records beside it"
                )
        rounds = sum(count for count, _ in shape)
        if rounds != records["most_rounds"]:
            yield (
                f"the charges of group {index} are for {rounds} rounds, its clients take part in "
                f"{records['most_rounds']}"
            )

    def _check_shares(self, index: int) -> Iterator[str]:
        """Check that a client's groups of records have the configured budgets and fractions of records."""
        privacy, budgets, shares = (
            self.files.config["privacy"],
            [self.plan["groups"][index]["epsilon"]],
            [1.0],
        )
        if privacy.get("budgets_of") == "records":
            budgets = privacy["budgets"]
            shares = privacy["group_shares"] or [1 / len(budgets)] * len(budgets)
        for key, asked in (("epsilon", budgets), ("share", shares)):
            said = [own[key] for own in self.records(index)["groups"]]
            if said != asked:
                yield f"plan.json has {key} {said} of the records of group {index}, the configuration {asked}"

    def check_bounds(self, index: int) -> Iterator[str]:
        """Check that the allowed number of DP-SGD steps is within all budgets, and that no more are charged.

        What is charged is held to the budget exactly, and elsewhere.
        """
        records, charges = self.records(index), self.plan["groups"][index]["charges"]
        allowed = records["steps_allowed"]
        charged = sum(count * steps for count, steps in _shape(charges))
        if charged > allowed:
            yield f"group {index} is charged {charged} steps, of {allowed} that its budgets admit"
        for number, own in enumerate(records["groups"]):
            cost = self.cost_of_steps(index, number, allowed)
            if cost > own["epsilon"] * (1 + TWO_BOUNDS):
                yield (
                    f"{allowed} steps are said to be within the budget of {own['epsilon']:g} of group "
                    f"{index}, records {number}, but they cost {cost:.4g}"
                )

    def cost_of_steps(self, index: int, number: int, steps: int) -> float:
        """Return epsilon of this many DP-SGD steps for a record, from its group's batch rate and noise."""
        # All that a charge says beside its steps is compared with the plan.
        event = self.records(index)["groups"][number]["charges"][0]["event"]
        return self.figure(charges_of([{"event": {**event, "num_steps": steps}, "count": 1}]))

    def _check_noise(self, index: int) -> Iterator[str]:
        """Check that the plan's noise for a group's sum is the noise that hides one record or person."""
        group = self.plan["groups"][index]
        norm = group.get("clipping_norm", self.plan["clipping_norm"])
        stated = group["noise_multiplier"] * norm if group["noise_multiplier"] else 0.0
        owed = self._noise_of_record(index)
        if abs(stated - owed) > ROUNDING * max(owed, 1.0):
            yield (
                f"plan.json states noise of standard deviation {stated:.6g} for the sum of group {index}, "
                f"where {owed:.6g} hides one of its records"
            )

    def check_log(self, index: int) -> Iterator[str]:
        """Check the run's log; if clients add noise in every DP-SGD step, a sum must get no further noise."""
        yield from super().check_log(index)
        for record in self.files.rounds if self.plan["works"] == ["dp_sgd"] else ():
            sums = zip(record["noise_stddevs"], record["groups_in_sums"], strict=True)
            if any(stddev and index in groups for stddev, groups in sums):
                yield (
                    f"round {record['round']} added noise to the sum of group {index}, whose clients are "
                    "said to have added it to every step"
                )
                return

    def check_figures(self, index: int) -> Iterator[str]:
        yield from super().check_figures(index)
        for number, own in enumerate(self.records(index)["groups"]):
            epsilon = self.figure(charges_of(own["charges"]))
            within = own["epsilon_accounted"] <= own["epsilon"] * (1 + SAME_FIGURE)
            if not within or not self.agrees(own["epsilon_accounted"], epsilon, loose=True):
                yield (
                    f"plan.json has epsilon_accounted {own['epsilon_accounted']} of group {index}, records "
                    f"{number}, where {epsilon:.4g} follows"
                )


class RecordSumsRule(StepsRule):
    """Recomputes the epsilon of runs that sum steps of DP-SGD on the clients' records."""

    @property
    def asked(self) -> Mapping[str, Any]:
        """The plan entries that this mechanism requires: one sum per round, and what clients compute."""
        work = WORKS.get(self.files.config["method"]["name"])
        return {"sums_per_round": 1, **({"works": [work]} if work else {})}

    def exact(self, index: int) -> dict[str, float]:
        group, records = self.plan["groups"][index], self.records(index)
        exact = super().exact(index)
        exact["epsilon_against_members"] = records["groups"][0]["epsilon_accounted"]
        exact["epsilon_accounted"] = exact["epsilon_against_members"]
        if group["epsilon_against_server"] is not None:
            exact["epsilon_against_server"] = exact["epsilon_against_members"]
        if not isinstance(self.files.config["privacy"]["sampling_rates"], list):
            exact["sampling_rate"] = self.plan["sampling_rate"]
        return exact

    def check_bounds(self, index: int) -> Iterator[str]:
        """Check that clipping norm and steps are as configured and, with PLD, budgets allow no more steps."""
        yield from super().check_bounds(index)
        records, asked = self.records(index), self._asked_norm(index)
        if not math.isclose(records["clipping_norm"], asked, rel_tol=ROUNDING):
            yield f"group {index} clips gradients to {records['clipping_norm']}, and {asked} was configured"
        if self.plan["works"] == ["dp_sgd"]:
            local = self.files.config["training"]["local_steps"]
            first = self.plan["groups"][index]["charges"][0]["event"]["num_steps"]
            chosen = self.files.config["method"].get("most_local_steps")
            # A method that chooses how many steps a round has takes at most `most_local_steps`.
            fits = first <= chosen if chosen is not None else first == min(local, records["steps_allowed"])
            if not fits:
                yield f"group {index} takes {first} steps in its first round, and {local} were configured"
        # Another accountant's bound may end earlier than the losses that are accounted here.
        allowed = records["steps_allowed"]
        if self.plan["accountant"] != "pld" or allowed >= MOST_STEPS:
            return
        if all(
            self.cost_of_steps(index, number, allowed + 1) * (1 + TWO_BOUNDS) <= own["epsilon"]
            for number, own in enumerate(records["groups"])
        ):
            yield (
                f"{allowed} steps are said to be all that group {index} has budgets for, and these admit more"
            )

    def _asked_norm(self, index: int) -> float:
        """Return the norm to which a group clips gradients; it may depend on the noise of all groups.

        Under `heterogeneous=scale` norms are as 1 / sigma of their groups, and C is their mean over clients.
        """
        norm = float(self.files.config["privacy"]["clipping_norm"])
        if self.files.config["method"].get("heterogeneous") == "scale":
            inverse = [1 / self.records(each)["noise_multiplier"] for each in range(len(self.plan["groups"]))]
            clients = [group["clients"] for group in self.plan["groups"]]
            norm *= inverse[index] * sum(clients) / math.fsum(map(mul, clients, inverse))
        return norm if self.plan["works"] == ["dp_sgd"] else norm / self.parties(index)


def _shape(charges: Sequence[Mapping[str, Any]]) -> list[tuple[int, int]]:
    """Return for each saved privacy cost: its number of rounds, and the number of DP-SGD steps in a round."""
    return [(charge["count"], charge["event"]["num_steps"]) for charge in charges]
