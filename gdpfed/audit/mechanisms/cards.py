"""Checks of model cards of runs that sample clients, schedule each client's rounds, or protect records."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from gdpfed.audit.accounting import charges_of, first_rounds, parties_in
from gdpfed.audit.card_forms import Expected, Fields
from gdpfed.audit.inference import Inference, inference_of
from gdpfed.audit.mechanism_card import MechanismCard, of_group
from gdpfed.audit.mechanisms.scheduled_sums import as_one_sum

OTHERWISE = {
    "zero_out": "had sent nothing but noise in every round",
    "replace_one": "had had any other data",
}
TOLD = {
    "active": "who else is in it, by lasting numbers",
    "curious": "how many are in it, though not who",
    "off": "how many are in it, though not who",
}
AGAINST_EVERYONE = (
    "Epsilon holds against everyone: the public, members of the same sums, and a server that follows the "
    "protocol, whether they know who takes part when or not."
)
AGAINST_ALL_BUT_SERVER = (
    "Epsilon holds against everyone but the server, whether they know who takes part when or not. The server "
    "is trusted: secure aggregation is off, so it sees single updates and adds the noise."
)
NO_BOUND = "no bound"
CLIENTS = frozenset({"clients-protected"})


def _figure(value: float | None) -> str:
    return NO_BOUND if value is None else f"{value:.2f}"


class SampledCard(MechanismCard):
    """Checks model cards of runs that sample clients in secret."""

    sections = CLIENTS | {"sampled", "tabled"}

    def inferences(self) -> Mapping[int, Sequence[Inference]]:
        charged = self.files.ledger["charged_rounds"]
        return {
            index: [inference_of([*self.paid_first, *first_rounds(group["charges"], charged)])]
            for index, group in enumerate(self.plan["groups"])
        }

    def of_members(self, index: int) -> Inference | None:
        """Return the membership inference bound for attackers in the same sum, who know who else is in it."""
        group = self.plan["groups"][index]
        least = min(
            (sums for sums, _ in charges_of(group["charges"])), key=lambda each: each.noise_multiplier
        )
        known = replace(least, sampling="poisson", sampling_rate=1.0, group_size=1)
        return inference_of([*self.paid_first, (known, group["participations_p99"])])

    def fields(self) -> Fields:
        hidden = self.plan["sums_hidden"]
        return {
            "otherwise": OTHERWISE[self.plan["adjacency"]],
            "told": TOLD[self.files.config["secagg"]["mode"]],
            "others": "the server and members of its sums" if hidden else "members of its sums",
        }

    def rows(self) -> Mapping[str, list[Fields]]:
        return {
            "group": [
                {
                    **of_group(self.files, index),
                    "most": str(group["participations_p99"]),
                    "against_server": _figure(group["epsilon_against_server"]),
                    "against_members": _figure(group["epsilon_against_members"]),
                }
                for index, group in enumerate(self.plan["groups"])
            ]
        }


class TurnsCard(MechanismCard):
    """Checks model cards of runs that schedule in which rounds each client takes part (turns)."""

    sections = CLIENTS | {"turns"}

    def holds(self) -> frozenset[str]:
        takes_back = any(tap > 0 for group in self.plan["groups"] for tap in group["turns"]["taps"])
        return self.sections | ({"takes-back"} if takes_back else set())

    def inferences(self) -> Mapping[int, Sequence[Inference]]:
        """Return each group's membership inference bounds for a client in the costliest allowed rounds."""
        charged = self.files.ledger["charged_rounds"]
        found = {}
        for index, group in enumerate(self.plan["groups"]):
            limits = group["turns"]
            turns = [number * limits["separation"] for number in range(limits["most_turns"])]
            cost = as_one_sum(
                limits["taps"],
                group["noise_multiplier"],
                self.plan["adjacency"],
                [turn for turn in turns if turn < charged],
                charged,
            )
            found[index] = [inference_of([*self.paid_first, *cost])]
        return found

    def fields(self) -> Fields:
        return {
            "otherwise": OTHERWISE[self.plan["adjacency"]],
            "against_whom": AGAINST_EVERYONE if self.plan["sums_hidden"] else AGAINST_ALL_BUT_SERVER,
        }

    def rows(self) -> Mapping[str, list[Fields]]:
        return {
            "group": [
                {
                    **of_group(self.files, index),
                    "turns": str(group["turns"]["most_turns"]),
                    "apart": str(group["turns"]["separation"]),
                }
                for index, group in enumerate(self.plan["groups"])
            ]
        }


class StepsCard(MechanismCard):
    """Checks model cards of runs that protect single records or persons."""

    sections = frozenset({"records", "tabled"})

    def holds(self) -> frozenset[str]:
        parties, persons = self._parties(), self.plan.get("record_is") == "person"
        noiseless = self.plan["works"] != ["dp_sgd"]
        return (
            self.sections
            | {"persons" if persons else "rows"}
            | ({"several-parties"} if parties > 1 else set())
            | ({"sums-without-noise", "shared-noise"} if noiseless else {"own-noise"})
        )

    def _parties(self) -> int:
        events = (charge["event"] for group in self.plan["groups"] for charge in group["charges"])
        return max(map(parties_in, events), default=1)

    def _budgets(self) -> list[tuple[int, int, Mapping[str, Any]]]:
        """List the record groups: client group's number, record group's number, and the plan's entry."""
        return [
            (index, number, own)
            for index, group in enumerate(self.plan["groups"])
            for number, own in enumerate(group["records"]["groups"])
        ]

    def inferences(self) -> Mapping[int, Sequence[Inference]]:
        charged, found = self.files.ledger["charged_rounds"], dict[int, list[Inference]]()
        for index, _, own in self._budgets():
            paid = [*self.paid_first, *first_rounds(own["charges"], charged)]
            found.setdefault(index, []).append(inference_of(paid))
        return found

    def inference_row(self, index: int, number: int) -> Fields:
        return {"budget": f"{self.plan['groups'][index]['records']['groups'][number]['epsilon']:g}"}

    def fields(self) -> Fields:
        record, parties = self.plan.get("record_is", "record"), self._parties()
        clients = "one client" if parties == 1 else f"up to {parties} clients"
        return {
            "record": record,
            "whole": "" if record == "record" else f", with all its rows at {clients},",
            "parties": str(parties),
            "elsewhere": "several clients" if parties == 1 else f"more than {parties} clients",
        }

    def rows(self) -> Mapping[str, list[Fields]]:
        return {"group": [self._row(*each) for each in self._budgets()]}

    def _row(self, index: int, number: int, own: Mapping[str, Any]) -> Fields:
        row: dict[str, Expected] = {
            **of_group(self.files, index),
            "share": f"{100 * own['share']:g}",
            "budget": f"{own['epsilon']:g}",
            "factor": f"{math.exp(min(own['epsilon'], 700)):.3g}",
        }
        return row if number == 0 else row | {"spent": "as group 0"}
