"""Audits H2FDP runs: is each edge server trusted as configured, and is the noise large enough?"""

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from scipy import stats

from gdpfed.audit.card_forms import Fields
from gdpfed.audit.mechanism_card import MechanismCard
from gdpfed.audit.mechanisms.cards import SampledCard, StepsCard
from gdpfed.audit.mechanisms.record_entries import BOUNDS, StepEntry
from gdpfed.audit.mechanisms.record_sums import StepsRule
from gdpfed.audit.mechanisms.sampled_sums import SampledSumsRule
from gdpfed.audit.rules import AuditRule
from gdpfed.audit.run_files import RunFiles
from gdpfed.audit.tolerances import ROUNDING

CONVEX_MODEL, USUAL_BIAS_INPUT, USUAL_WINDOW = "softmax", 0.1, 5
AT_AN_EDGE = (
    "the edge saw single contributions without noise and added it to their sum, so nothing at all is "
    "promised against it; each device said that it trusts it"
)
WHO_ADDS_NOISE = {
    "trusted": "**simulated trust**: an edge saw single contributions without noise and added it to their "
    "sum, so nothing at all is promised against it; this run had no edges, which were simulated",
    "secagg": "the noise was added by the devices together, under secure aggregation",
    "untrusted": "every device added all of the noise to its own contribution",
}
WORKS = {
    **{"step_sum": "gradient_sum", "convex": "convex_steps"},
    **{"step_local": "dp_sgd", "window": "window_steps"},
}
"""What devices compute between two sums, by the configured mechanism for records."""
# What long steps may have of delta.
MOST_RESERVED = 0.01


class Subnets(AuditRule):
    """Audits runs with edge servers: the noise must fit the configured trust and the training steps."""

    def planned_noise(self, index: int, round_number: int, size: int) -> float:
        """Return the planned standard deviation of the noise in a sum over `size` devices.

        If every device adds all the noise, the sum has sqrt(size) times more.
        """
        group, planned = self.plan["groups"][index], super().planned_noise(index, round_number, size)
        return planned * (math.sqrt(size) if group["trust"] == "untrusted" else 1.0)

    @property
    def asked(self) -> Mapping[str, Any]:
        """The plan's required entries: the kind and rate of client sampling, and the sums per round."""
        drawn, groups = self.files.config["method"]["participants"], self.plan["groups"]
        sums = {"sums_per_round": _sums_per_round(self.files)}
        if drawn is None:
            return {**sums, "sampling": "poisson", "sampling_rate": 1.0}
        taking_part = sum(drawn) if isinstance(drawn, list) else drawn * len(groups)
        clients = sum(group["clients"] for group in groups)
        return {**sums, "sampling": "fixed_size", "sampling_rate": min(1.0, taking_part / clients)}

    def check_plan(self) -> Iterator[str]:
        yield from super().check_plan()
        files, groups, method = self.files, self.plan["groups"], self.files.config["method"]
        if len(groups) != method["num_subnets"]:
            yield f"plan.json has {len(groups)} subnets, the configuration {method['num_subnets']}"
        for index, (group, word) in enumerate(zip(groups, _trust_of_subnets(files), strict=False)):
            if group.get("trust") != word:
                yield f"plan.json has subnet {index} as {group.get('trust')}, the configuration as {word}"


class SubnetsOfClients(Subnets, SampledSumsRule):
    """Audits runs with edge servers in which the noise protects whole devices."""

    entries = frozenset({"trust"})


class SubnetsOfRecords(Subnets, StepsRule):
    """Audits runs with edge servers in which the noise protects single records of devices."""

    entries = frozenset({"records", "trust"})
    kinds = StepsRule.kinds | {"local_windows"}

    @property
    def asked(self) -> Mapping[str, Any]:
        return {**super().asked, "works": [WORKS[_mechanism(self.files)]]}

    def check_plan(self) -> Iterator[str]:
        yield from super().check_plan()
        (work,), taken = self.asked["works"], self.files.config["training"]["local_steps"]
        for index, group in enumerate(self.plan["groups"]):
            records = group["records"]
            bound, move = records.get("bound"), float(self.files.config["privacy"]["clipping_norm"])
            if bound == "convex":
                move = math.sqrt(2 * _squared_input(self.files))
            elif bound == "window":
                move = 2 * records["window_steps"] * move
            if bound != BOUNDS.get(work):
                yield f"subnet {index} is charged by the bound {bound}, and {work} has {BOUNDS.get(work)}"
            for steps in sorted({charge["event"]["num_steps"] for charge in group["charges"]} - {taken}):
                yield f"subnet {index} is charged for {steps} steps a round, and its devices take {taken}"
            if bound is not None:
                yield from _check_window(self.files, index, records)
            if records["clipping_norm"] < move * (1 - ROUNDING):
                yield (
                    f"a record moves what a device of subnet {index} sends by {move:.6g}, and plan.json has "
                    f"{records['clipping_norm']:.6g}"
                )


class TrustCard(MechanismCard):
    """Checks that a model card says who added the noise for the devices behind each edge server."""

    lines = (Path(__file__).with_name("audit_card_lines.txt"),)

    def holds(self) -> frozenset[str]:
        return super().holds() | {"subnets"}

    def rows(self) -> Mapping[str, list[Fields]]:
        trusts = [group["trust"] for group in self.plan["groups"]]
        at_an_edge = self.files.config["run"]["mailbox"] is not None
        words = {**WHO_ADDS_NOISE, **({"trusted": AT_AN_EDGE} if at_an_edge else {})}
        found: list[Fields] = [
            {
                "subnets": _in_ranges([index for index, each in enumerate(trusts) if each == trust]),
                "trust": trust,
                "trust_words": words[trust],
            }
            for trust in dict.fromkeys(trusts)
        ]
        return {**super().rows(), "trust": found}


class SubnetsCard(TrustCard, SampledCard):
    """Checks the model card of a run with edge servers in which the noise protects whole devices."""


class SubnetRecordsCard(TrustCard, StepsCard):
    """Checks the model card of a run with edge servers in which the noise protects single records."""

    def holds(self) -> frozenset[str]:
        return super().holds() - {"own-noise", "shared-noise"}


def _in_ranges(numbers: list[int]) -> str:
    """Write ascending numbers as ranges, as in "0 to 2, 4"."""
    starts = [each for each in numbers if each - 1 not in numbers]
    ends = [each for each in numbers if each + 1 not in numbers]
    return ", ".join(
        str(low) if low == high else f"{low} to {high}" for low, high in zip(starts, ends, strict=True)
    )


def _mechanism(files: RunFiles) -> str:
    """Return the configured mechanism; if it is `auto`, choose it by privacy unit and model."""
    chosen = str(files.config["method"]["mechanism"])
    if chosen != "auto":
        return chosen
    if files.config["privacy"].get("unit", "client") == "client":
        return "update"
    return "convex" if files.config["dataset"]["model"] == CONVEX_MODEL else "step_sum"


def _sums_per_round(files: RunFiles) -> int:
    """Return each round's number of sums: as configured, or else one for every step or several steps."""
    given, steps = files.config["method"]["local_aggregations"], files.config["training"]["local_steps"]
    if given is not None:
        return int(given)
    if _mechanism(files) == "step_sum":
        return int(steps)
    return next(count for count in range(-(-steps // USUAL_WINDOW), steps + 1) if steps % count == 0)


def _trust_of_subnets(files: RunFiles) -> list[str]:
    """Return, for each edge server, whom its devices trust to add the noise, as configured."""
    method, count = files.config["method"], len(files.plan["groups"])
    if _mechanism(files) == "step_local":
        return ["untrusted"] * count
    if isinstance(method["trust"], list):
        return [str(word) for word in method["trust"]]
    trusted = round((method["trusted_share"] or 0.0) * count)
    return ["trusted"] * trusted + [str(method["trust"])] * (count - trusted)


def _check_window(files: RunFiles, index: int, records: Mapping[str, Any]) -> Iterator[str]:
    """Check the bound on how far a record can move a device's model in the steps between two sums."""
    training, steps = files.config["training"], records["window_steps"]
    if training["momentum"]:
        yield f"subnet {index} trains with momentum {training['momentum']}, which its bound does not cover"
    if training.get("optimizer", "sgd") != "sgd" or any(map(training.get, ("optimizer_options", "proximal"))):
        yield f"subnet {index} trains with more than steps of sgd, which its bound does not cover"
    if steps * files.plan["sums_per_round"] != training["local_steps"]:
        yield (
            f"subnet {index} has {files.plan['sums_per_round']} windows of {steps} steps a round, the "
            f"configuration {training['local_steps']} steps"
        )
    if records["bound"] != "convex":
        return

    # The loss must be convex, and steps too long for the proof of privacy very unlikely.
    data = files.config["dataset"]
    if data["model"] != CONVEX_MODEL or data["loss"] != "cross_entropy" or data["class_weights"]:
        yield f"subnet {index} is charged for a convex loss, and the model is {data['model']}"
    counts = files.config["privacy"]["client_records"]
    rate, eta = records["groups"][0]["batch_rate"], training["learning_rate"]
    if counts is None:
        return
    # The fewer records, the smaller the batch that is too large.
    least = min(counts)
    smoothness = _squared_input(files) / 2
    largest = math.floor(2 * rate * least / (eta * smoothness) * (1 + 1e-12))
    taken = files.plan["num_rounds"] * training["local_steps"]
    chance = taken * float(stats.binom.sf(largest, least, rate))
    if chance > MOST_RESERVED * files.plan["delta"]:
        yield f"subnet {index} may take a step that is too long with a chance of {chance:.3g}"


def _squared_input(files: RunFiles) -> float:
    """Return r^2 = 1 + b^2, the squared norm of an input of the convex model, with its constant b."""
    options = files.config["dataset"]["model_options"] or {}
    return 1 + float(options.get("bias_input", USUAL_BIAS_INPUT)) ** 2


class WindowEntry(StepEntry):
    """One run in a client's privacy ledger, in which each release covers several local steps (a window)."""

    kinds = frozenset({"local_windows"})
