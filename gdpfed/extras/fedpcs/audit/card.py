"""Checks model cards of runs whose clients choose their budgets."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from gdpfed.audit.accounting import charges_of
from gdpfed.audit.card_forms import Expected, Fields, near
from gdpfed.audit.inference import Inference, inference_of, inference_of_gaussian
from gdpfed.audit.mechanism_card import MechanismCard
from gdpfed.audit.tolerances import TWO_BOUNDS
from gdpfed.extras.fedpcs.audit.budget_checks import (
    STEPS,
    epsilon_of,
    spending_of,
    steps_event,
    worst_totals,
)

WHOSE = {"record": "any one record of any client", "client": "any client, with everything it holds"}
OTHERWISE = {
    ("record", "replace_one"): "this record were another",
    ("record", "zero_out"): "this record had counted as zero in every step",
    ("client", "zero_out"): "it had sent nothing but its noise in every round that it took part in",
    ("client", "replace_one"): "it had had any other data",
}
QUANTILES = {"least": 0.0, "median": 0.5, "most": 1.0}
NOISED_GRADIENTS = "the noised gradients that clients released when they were last asked, each read alone"


class BudgetsCard(MechanismCard):
    """Checks a model card that lists the least, median and largest privacy cost that clients may have."""

    lines = (Path(__file__).with_name("card_lines.txt"),)
    sections = frozenset({"own-spending"})

    def holds(self) -> frozenset[str]:
        ruled = {"ruled"} if "rule" in spending_of(self.files) else set()
        return self.sections | ruled | ({"of-records"} if self.plan["unit"] == "record" else set())

    def inferences(self) -> Mapping[int, Sequence[Inference]]:
        """Return bounds on membership inference for the client that may have spent most."""
        own, charged = spending_of(self.files), self.files.ledger["charged_rounds"]
        if STEPS in own:
            event = steps_event(own, min(own[STEPS]["noise_multipliers"]))
            taken = min(charged, own["most_rounds"])
            return {0: [inference_of(charges_of([{"event": event, "count": taken}]))]}
        rho = float(worst_totals(own, charged).max())
        return {0: [inference_of_gaussian(math.sqrt(2 * rho))]}

    def fields(self) -> Fields:
        plan, own = self.plan, spending_of(self.files)
        last = self.files.rounds[-1]["epsilon_against_server"][0] if self.files.rounds else 0.0
        made_of = "that of one Gaussian mechanism of its total zCDP"
        if STEPS in own:
            made_of = (
                f"that of {own[STEPS]['num_steps']} steps of DP-SGD a round at its own noise, each of a "
                "batch that is drawn in secret and takes every record in by chance"
            )
        return {
            "whose": WHOSE[plan["unit"]],
            "otherwise": OTHERWISE[plan["unit"], plan["adjacency"]],
            "adjacency": plan["adjacency"].replace("_", " "),
            "made_of": made_of,
            "spent_in": "steps" if STEPS in own else "zCDP",
            "most_spent": f"{last:.4g}",
            "released": self._released(),
        }

    def _released(self) -> str:
        own = spending_of(self.files)
        if own.get("rule") != "fed_cbs":
            return NOISED_GRADIENTS
        rho = own["counts_rho"]
        return (
            "how many records of each class clients have, which every client released once, before the first "
            f"round, at {rho:g} zCDP: under noise of standard deviation {1 / math.sqrt(rho):.4g} in every "
            "count. That is in every total, also of who was never asked"
        )

    def rows(self) -> Mapping[str, list[Fields]]:
        return {"total": [self._total(name, quantile) for name, quantile in QUANTILES.items()]}

    def _total(self, name: str, quantile: float) -> dict[str, Expected]:
        own = spending_of(self.files)
        if STEPS in own:
            epsilon = float(np.quantile(own[STEPS]["epsilons"], quantile))
            spent = str(own[STEPS]["num_steps"] * own["most_rounds"])
            return {
                "quantile": name,
                "total": spent,
                "total_epsilon": near(epsilon, TWO_BOUNDS * epsilon),
            }
        rho = float(np.quantile(worst_totals(own, self.plan["num_rounds"]), quantile))
        epsilon = epsilon_of(rho, self.plan["delta"])
        return {"quantile": name, "total": f"{rho:.5g}", "total_epsilon": near(epsilon, 1e-5 * epsilon)}
