"""Tables and model card lines for runs with edge servers: trust, noise, and epsilon by adversary."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

from gdpfed.decimal_numbers import counted
from gdpfed.extras.h2fdp.subnet_sums import Trust, trusts_of
from gdpfed.methods.base import PlanTable
from gdpfed.privacy.accountants.accountant import make_accountant
from gdpfed.privacy.mechanism_options import edge_adds_noise
from gdpfed.privacy.mechanisms.records.calibration import step_noise
from gdpfed.privacy.mechanisms.records.mechanism import records_of
from gdpfed.privacy.mechanisms.records.report import RecordReport
from gdpfed.privacy.mechanisms.sampled.report import ClientReport
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.report.mechanism_reports import CardSubject, MechanismReport

if TYPE_CHECKING:
    from gdpfed.extras.h2fdp.h2fdp import H2FDP

HEADINGS = ("subnets", "trust", "devices", "z", "members", "cloud", "edge")


@dataclass(frozen=True)
class Observers:
    """The epsilon of a whole run against each kind of adversary, and the noise that such an adversary sees.

    Attributes:
        members: epsilon against the other devices of its subnet, who get every model of it.
        cloud: against the server.
        edge: against the edge of its subnet.
        noise: of a subnet's mean, which members and cloud see: a coordinate's standard deviation.
        noise_at_edge: the same in what the edge sees: of single contributions, or of their sum alone.
    """

    members: float
    cloud: float
    edge: float
    noise: float
    noise_at_edge: float


def observers(method: "H2FDP", group_index: int) -> Observers:
    """Return epsilon of a run against each adversary, for a device or one of its records.

    Members see all L releases of their subnet. The cloud gets no more than these. A trusted edge sees single
    contributions without noise; the other ones see what the members see, or contributions of which each has
    all of the noise. In the run of a real edge the server is the edge, and the cloud sees what members see.
    """
    plan, group = method.plan, method.plan.groups[group_index]
    members = plan.epsilon_against_members(group_index, group.participations_p99)
    server = plan.epsilon_against_server(group_index, group.participations_p99)
    cloud = members if _at_an_edge(method) else server
    edge = math.inf if edge_adds_noise(plan.mechanism, group_index) else server
    return Observers(members, cloud, edge, method.mean_noise(group_index), method.noise_at_edge(group_index))


def _at_an_edge(method: "H2FDP") -> bool:
    """Return whether an edge server itself carries out this run, as the server of its devices."""
    return method.config.run.mailbox is not None


def subnet_table(method: "H2FDP") -> PlanTable:
    """Return a table of edge servers; consecutive ones with equal values share a row."""
    plan = method.plan
    rows = []
    cells = []
    for index, group in enumerate(plan.groups):
        seen, sigma = observers(method, index), group.noise_multiplier
        if plan.about_records:
            sigma = records_of(plan)[index].noise_multiplier
        simulated = method.trusts[index] == "trusted" and not _at_an_edge(method)
        drawn, all_of_it = max(1, round(group.expected_cohort_size)), len(group.clients)
        texts = (
            "simulated trust" if simulated else method.trusts[index],
            str(drawn) if drawn == all_of_it else f"{drawn} of {all_of_it}",
            f"{sigma:.4g}",
            _seen(seen.members, seen.noise),
            _seen(seen.cloud, seen.noise),
            _seen(seen.edge, seen.noise_at_edge),
        )
        cells.append((index, texts))
    for row, alike in groupby(cells, key=lambda each: each[1]):
        numbers = [index for index, _ in alike]
        first, last = numbers[0], numbers[-1]
        rows.append((str(first) if first == last else f"{first} to {last}", *row))
    return PlanTable(
        title=f"{method.name}: {plan.unit}-level DP, {counted(plan.num_rounds, 'round')}",
        headings=HEADINGS,
        rows=rows,
        notes=_notes(method),
        text_columns=("trust",),
    )


def _seen(epsilon: float, noise: float) -> str:
    return f"{'none' if math.isinf(epsilon) else f'{epsilon:.3f}'}\n{noise:.4g}"


def _notes(method: "H2FDP") -> list[str]:
    plan = method.plan
    windows = plan.sums_per_round
    sums = "1 sum" if windows == 1 else f"{windows} sums"
    lines = [
        f"delta {plan.delta:.3g}, accountant {plan.accountant}, {plan.works[0]}: {sums} a round of "
        f"{method.window_steps} steps each, L = {plan.num_rounds * windows} releases of every subnet; budget "
        f"epsilon {plan.groups[0].epsilon:g}.",
        "members, cloud, edge: epsilon against the other devices of a subnet, the server, and its edge; "
        "below it the noise that they see, the standard deviation of a coordinate of a subnet's model after "
        "one sum of the first round, or, at an edge without trust or masks, of what one device adds to it.",
    ]
    trusted = "trusted" in method.trusts
    if trusted and _at_an_edge(method):
        lines.append(
            "trusted: the edge sees single contributions without noise, and nothing is promised against it. "
            "Devices take part only if they were started with edge-trusted=true."
        )
    elif trusted:
        lines.append(
            "Simulated trust: an edge sees single contributions without noise, and nothing is promised "
            "against it. There are no edges in a flat federation: gdpfed simulate runs this plan, and the "
            "run of an edge (run.mailbox), with devices that trust it (edge-trusted)."
        )
    if not plan.sums_hidden:
        server = "edge" if _at_an_edge(method) else "server"
        lines.append(f"Secure aggregation is off: nothing is promised against the {server}.")
    if plan.works == ("window_steps",):
        # How much noise the same budget would need if devices added noise in every step.
        group, steps, rate = plan.groups[0], method.window_steps, records_of(plan)[0].mean_rate
        sigma = step_noise(
            make_accountant(plan.accountant),
            epsilon=group.epsilon,
            delta=plan.delta,
            batch_rate=rate,
            num_steps=plan.num_rounds * windows * steps,
        )
        counts = method.record_counts[list(group.clients)]
        batches = rate * counts.sum()
        moved = method.learning_rate(0) * sigma * method.record_norm
        noise = moved * math.sqrt(len(counts) * steps) / batches
        lines.append(
            f"mechanism=step_local needs z {sigma:.4g} and leaves {noise:.4g} in the mean, on records "
            f"clipped to {method.record_norm:g}, with nobody trusted."
        )
    return lines


AT_AN_EDGE = (
    "the edge saw single contributions without noise and added it to their sum, so nothing at all is "
    "promised against it; each device said that it trusts it"
)
IN_WORDS: dict[Trust, str] = {
    "trusted": "**simulated trust**: an edge saw single contributions without noise and added it to their "
    "sum, so nothing at all is promised against it; this run had no edges, which were simulated",
    "secagg": "the noise was added by the devices together, under secure aggregation",
    "untrusted": "every device added all of the noise to its own contribution",
}


class SubnetReport(ClientReport):
    """Writes the model card of plans that protect whole devices behind edge servers."""

    def promise(self, subject: CardSubject) -> list[str]:
        return [*super().promise(subject), *_trust_lines(subject)]

    def promise_in_short(self, plan: PrivacyPlan) -> str:
        return f"{MechanismReport.promise_in_short(self, plan)} against {_against(plan)}"


class SubnetRecordReport(RecordReport):
    """Writes the model card of plans that protect single records of devices behind edge servers."""

    def against_others(self, plan: PrivacyPlan) -> str:
        return (
            ". Against whom the figures hold follows from who added the noise, as said of each subnet below."
        )

    def promise(self, subject: CardSubject) -> list[str]:
        return [*super().promise(subject), *_trust_lines(subject)]

    def promise_in_short(self, plan: PrivacyPlan) -> str:
        return f"{MechanismReport.promise_in_short(self, plan)} against {_against(plan)}"


def _against(plan: PrivacyPlan) -> str:
    """Say against whom the budgets of all subnets hold."""
    indices = range(len(plan.groups))
    exempt = []
    if any(math.isinf(plan.epsilon_against_server(m, plan.groups[m].participations_p99)) for m in indices):
        exempt.append("the server")
    if any(edge_adds_noise(plan.mechanism, m) for m in indices):
        exempt.append("the trusted edges")
    return f"all but {' and '.join(exempt)}" if exempt else "everyone"


def _trust_lines(subject: CardSubject) -> Iterator[str]:
    """Yield a model card line for each kind of trust: its edge servers, and who added the noise there."""
    mailbox, trusts = subject.config.run.mailbox, trusts_of(subject.plan)
    in_words = IN_WORDS | ({"trusted": AT_AN_EDGE} if mailbox is not None else {})
    for word in dict.fromkeys(trusts):
        numbers = [index for index, each in enumerate(trusts) if each == word]
        yield f"* subnets {_in_ranges(numbers)} ({word}): {in_words[word]}"


def _in_ranges(numbers: list[int]) -> str:
    """Write ascending numbers as text, with consecutive numbers as ranges: "1 to 3, 5"."""
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ", ".join(str(low) if low == high else f"{low} to {high}" for low, high in ranges)
