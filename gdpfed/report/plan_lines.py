"""Lines of text about a privacy plan: warnings, membership inference bounds, client votes, update norms."""

from collections.abc import Iterator, Sequence
from math import isinf

from conf.schema import CLIENTS, Config
from gdpfed.methods.vote import chance_of_agreement
from gdpfed.privacy.mechanism_options import record_groups
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.planning.groups import default_delta, exposure
from gdpfed.privacy.replacement import ReplacementBound, replacement_bound
from gdpfed.privacy.sampling.cohort_sizes import skipped_fractions, small_fractions
from gdpfed.privacy.sampling.cohorts import fills_cohorts
from gdpfed.privacy.sums_once import NormHistogram
from gdpfed.registry import OF_PYTHON
from gdpfed.report.facts import Fact
from gdpfed.report.mechanism_reports import report_of
from gdpfed.report.party_lines import has_every_party
from gdpfed.report.trust_lines import (
    lying_server_lines,
    own_share_lines,
    size_facts,
    told_size_lines,
)
from gdpfed.rounds.extensions.norms_result import UpdateNorms, points_open
from gdpfed.rounds.extensions.vote_result import VoteResult

PROOFS = {
    "nothing": "nothing was told",
    "no noise": "without noise",
    "gaussian": "exactly, of Gaussians",
    "pld": "by privacy loss distributions",
    "rdp": "by Renyi divergences, which fixed_size sampling is bounded by, which is looser",
}

REPLACEMENT_PROOFS = {
    "planned": "the plan's own adjacency",
    "gaussian": "exactly, as twice the mu of Gaussians",
    "accountant": "by the accountants' replace-one adjacency",
    "group privacy": "by group privacy of size two, which is looser",
}


def replacement_fact(plan: PrivacyPlan) -> Fact:
    """Return a name and value for display: each group's epsilon under replace-one adjacency."""
    found = _replacements(plan)
    shown = ["no known bound" if isinf(each.epsilon) else f"{each.epsilon:.3g}" for each in found]
    figures = ", ".join(shown if len(set(shown)) > 1 else shown[:1])
    epsilon = "" if all(isinf(each.epsilon) for each in found) else "epsilon "
    planned = found[0].proof == "planned"
    above = "" if planned else f"; those above are of a {plan.protected} against none"
    two = "two values" if plan.about_records else "two data sets"
    return Fact(f"between {two}", f"{epsilon}{figures} of one {plan.protected}{above}")


def common_facts(plan: PrivacyPlan) -> list[Fact]:
    """Return values shown for any mechanism: delta, replace-one epsilon, and membership inference bounds."""
    if not plan.private:
        return []
    bounds = [plan.inference_bound(index, None, number) for index, number, _ in _protected(plan)]
    tpr = ", ".join(f"{100 * each.tpr_at_1_percent_fpr:.1f}" for each in bounds)
    accuracy = ", ".join(f"{100 * each.accuracy_at_even_odds:.1f}" for each in bounds)
    seen = "models, all sums and turns" if plan.mechanism.against_everyone else "the models"
    proofs = " and ".join(sorted({REPLACEMENT_PROOFS[each.proof] for each in _replacements(plan)}))
    return [
        Fact("delta", f"{plan.delta:.3g}"),
        replacement_fact(plan),
        Fact("membership inference", f"at most {tpr} % true positives at 1 % false positives"),
        Fact("at even odds", f"an accuracy of at most {accuracy} %, of a {plan.unit} from {seen}", True),
        Fact("replace-one epsilon", proofs, True),
        *(Fact("vote", line) for line in vote_lines(plan)),
        *(Fact("norms of updates", line) for line in norm_lines(plan)),
    ]


def _replacements(plan: PrivacyPlan) -> list[ReplacementBound]:
    return [replacement_bound(plan, index, number) for index, number, _ in _protected(plan)]


def replacement_dict(plan: PrivacyPlan) -> list[dict[str, object]]:
    """Return each group's epsilon under replace-one adjacency, for JSON; None where there is no bound."""
    return [
        {"group": name, "epsilon": None if isinf(found.epsilon) else found.epsilon, "proof": found.proof}
        for index, number, name in _protected(plan)
        for found in [replacement_bound(plan, index, number)]
    ]


def inference_lines(plan: PrivacyPlan, charged_rounds: int) -> list[str]:
    """Return a Markdown table of membership inference bounds after the first `charged_rounds` rounds.

    Where clients are protected it has those of members of a client's sums, too, for as many rounds as 99 % of
    clients take part in at most. Of records everybody knows as much.
    """
    rows, proofs, of_members = [], set(), not plan.about_records
    for index, number, name in _protected(plan):
        bounds = [plan.inference_bound(index, charged_rounds, number)]
        if of_members:
            participations = plan.groups[index].participations_p99
            bounds.append(plan.inference_bound_of_members(index, participations))
        proofs.add(bounds[0].proof)
        cells = [
            f"{100 * bound.tpr_at_1_percent_fpr:.1f} % | {100 * bound.accuracy_at_even_odds:.1f} %"
            for bound in bounds
        ]
        rows.append(f"| {name} | {' | '.join(cells)} |")
    members = "the server and members of its sums" if plan.sums_hidden else "members of its sums"
    others = f" {members}: true positives | accuracy at even odds |" if of_members else ""
    return [
        "",
        "Membership inference: an attacker who knows everything else tries to tell from the models whether a "
        f"{plan.unit} took part. At a false positive rate of 1 % its true positive rate is at most so large; "
        "where both cases are equally likely, its accuracy is (random guessing scores 1 % and 50 %). "
        f"Computed {' and '.join(sorted(PROOFS[proof] for proof in proofs))}.",
        "",
        f"| group | true positives at 1 % false positives | accuracy at even odds |{others}",
        "|---|---:|---:|" + ("---:|---:|" if of_members else ""),
        *rows,
    ]


def inference_dict(plan: PrivacyPlan) -> list[dict[str, object]]:
    """Return the membership inference bounds of a whole run as JSON, group by group."""
    members = {
        index: plan.inference_bound_of_members(index, group.participations_p99).to_dict()
        for index, group in enumerate(plan.groups)
        if not plan.about_records
    }
    return [
        {"group": name, **plan.inference_bound(index, None, number).to_dict()}
        | ({"of_members": members[index]} if index in members else {})
        for index, number, name in _protected(plan)
    ]


def _protected(plan: PrivacyPlan) -> Iterator[tuple[int, int, str]]:
    """Yield (client group, record group, label) by budget; record group is 0 if records have no budgets."""
    for index in range(len(plan.groups)):
        for number, records in enumerate(record_groups(plan.mechanism, index)):
            yield index, number, f"{index}, records of budget {records.epsilon:g}"
        if not record_groups(plan.mechanism, index):
            yield index, 0, str(index)


def vote_lines(plan: PrivacyPlan) -> Iterator[str]:
    """Yield a line on the clients' vote on settings: epsilon, and the chance that a unanimous choice wins."""
    vote = plan.vote
    if vote is None:
        return
    chance = chance_of_agreement(plan.num_clients, vote.noise_stddev, vote.options)
    yield (
        f"Before the first round all clients vote on {vote.options} settings, in one sum with noise of "
        f"{vote.noise_stddev:.3g} in every number of votes: epsilon {vote.epsilon:.3g} by itself, which is "
        f"in all figures here, and rounds are planned with the rest. A setting that all {plan.num_clients} "
        f"vote for wins with a probability of {100 * chance:.0f} %, and by chance alone with "
        f"{100 / vote.options:.0f} %."
    )


def vote_section(plan: PrivacyPlan, found: VoteResult | None) -> list[str]:
    """Return the model card's section about the clients' vote on settings; return [] if none was planned."""
    if plan.vote is None:
        return []
    cost = (
        f"Every {plan.unit} pays for it, epsilon {plan.vote.epsilon:.3g} by itself, within the budgets below."
    )
    if found is None:
        return ["## Settings", "", f"A vote on settings came to nothing. {cost}", ""]
    return [
        "## Settings",
        "",
        f"{found.clients} clients tried {len(found.settings)} settings on their own records and voted, in "
        f"one sum with noise of standard deviation {found.noise_stddev:.3g} in every number. The first was "
        "taken:",
        "",
        *(f"* {line}" for line in found.lines),
        "",
        f"No trial left its client. {cost}",
        "",
    ]


def norm_lines(plan: PrivacyPlan) -> Iterator[str]:
    """Yield a line on the planned histogram of update norms, if any: its epsilon and its accuracy."""
    planned = plan.first
    if not isinstance(planned, NormHistogram):
        return
    points = points_open(planned.noise_stddev, plan.num_clients)
    yield (
        "Before the first round all clients say how long an update of theirs is, in one sum with noise of "
        f"{planned.noise_stddev:.3g} in every count: epsilon {planned.epsilon:.3g} by itself, which is in "
        "all figures here, and rounds are planned with the rest. What share of "
        f"{plan.num_clients} clients is within half of privacy.clipping_norm, it tells up to {points:.2g} "
        "points (95 %)."
    )


def norm_section(plan: PrivacyPlan, found: UpdateNorms | None) -> list[str]:
    """Return the model card's section about the norms of updates; return [] if no histogram was planned."""
    if not isinstance(plan.first, NormHistogram):
        return []
    cost = f"Every client pays for it, epsilon {plan.first.epsilon:.3g} by itself, within the budgets below."
    if found is None:
        return ["## Norms of updates", "", f"A histogram of norms came to nothing. {cost}", ""]
    return [
        "## Norms of updates",
        "",
        f"{found.clients} clients said before the first round how long an update of theirs is, in one sum "
        f"with noise of standard deviation {found.noise_stddev:.3g} in every count. In brackets is what "
        "noise leaves open (95 %).",
        "",
        *(f"* {line}" for line in found.lines),
        "",
        *([f"{found.advice[0].upper()}{found.advice[1:]}.", ""] if found.advice else []),
        f"No norm left its client. {cost}",
        "",
    ]


TOLERATED_FRACTION = 0.05


def plan_details(plan: PrivacyPlan, config: Config) -> list[Fact]:
    """Return details of a plan: sizes of secure sums, and the extra noise that small secure sums need."""
    facts = size_facts(plan, config)
    if plan.private and plan.sums_hidden:
        facts += [Fact("members' own noise", line, True) for line in own_share_lines(plan, config)]
    return facts


def plan_warnings(plan: PrivacyPlan, config: Config, least_members: int | None = None) -> Iterator[str]:
    """Yield warnings about a plan, such as on a large delta, a lying server, or cohorts that are too small.

    `least_members`: of whatever is read; None for `secagg.minimum_cohort`.
    """
    minimum_cohort = least_members or config.secagg.minimum_cohort
    yield from large_delta_lines(plan)
    if plan.private:
        yield from chosen_by_data_lines(config)
        yield from large_epsilon_lines(plan)
        yield from _strictest_for_all(plan, config)
        yield from report_of(plan).warnings(plan)
        if plan.sums_hidden:
            yield from lying_server_lines(plan, config)
        yield from told_size_lines(plan, config)
        if not plan.about_records:
            budgets = [group.epsilon for group in plan.groups]
            yield from unspent(budgets, [plan.epsilon_after(m, plan.num_rounds) for m in range(len(budgets))])
    yield from _small_cohorts(plan, minimum_cohort)


def _small_cohorts(plan: PrivacyPlan, minimum_cohort: int) -> Iterator[str]:
    """Warn if sampled cohorts are often too small for a secure sum, and say what happens in such rounds."""
    small = small_fractions(plan, minimum_cohort)
    charged = plan.mechanism.small_cohorts_are_charged
    if plan.one_sum:
        if small.rounds > TOLERATED_FRACTION:
            expected = sum(group.expected_cohort_size for group in plan.groups)
            whole = "are charged and nothing is summed" if charged else "ask and charge nobody"
            yield (
                f"with {expected:.1f} clients of all groups expected a round, {100 * small.rounds:.0f} % "
                f"of the cohorts are below secagg.minimum_cohort={minimum_cohort}; "
                f"{FILLED if _is_filled(plan, plan.num_clients, minimum_cohort) else f'those rounds {whole}'}"
                ". Raise privacy.sampling_rate"
            )
        return
    for index, (group, fraction) in enumerate(zip(plan.groups, small.sums, strict=True)):
        if fraction > TOLERATED_FRACTION:
            charges = "are charged and" if charged else "charge nobody in it, and"
            filled = _is_filled(plan, len(group.clients), minimum_cohort)
            yield (
                f"group {index}: with {group.expected_cohort_size:.1f} clients expected a round, "
                f"{100 * fraction:.0f} % of its cohorts are below secagg.minimum_cohort={minimum_cohort}; "
                f"{FILLED if filled else f'those rounds {charges} go without it'}. "
                "Raise privacy.sampling_rate or privacy.min_sampling_rate"
            )
    skipped = skipped_fractions(plan, minimum_cohort)
    if len(plan.groups) > 1 and skipped.rounds > TOLERATED_FRACTION:
        then = "are charged all the same" if charged else "charge nobody"
        yield f"{100 * skipped.rounds:.0f} % of the rounds go without any sum, and {then}"


FILLED = "further clients send zeros in them, so that there is a sum whoever is drawn"


def _is_filled(plan: PrivacyPlan, num_clients: int, minimum_cohort: int) -> bool:
    """Whether a secure sum over this number of clients is filled up with clients that send zeros."""
    return fills_cohorts(plan) and num_clients >= minimum_cohort


def chosen_by_data_lines(config: Config) -> Iterator[str]:
    """Warn if the clients' data decide which clients the run has, since no epsilon covers this choice."""
    least = config.dataset.min_characters
    if least is not None:
        yield (
            f"which clients there are follows from their data: roles with fewer than {least} characters "
            "(dataset.min_characters) are left out, with fewer clients than roles those that say least, and "
            "no epsilon covers that"
        )
    elif config.dataset.partition == "natural" and not has_every_party(config):
        yield (
            "if the data has more owners than clients, those with the most examples are the clients: their "
            "data decide that, and no epsilon covers it"
        )


GIVEN_DATA, GIVEN_MODELS = ("python", "flower_app"), ("flower_arrays",)
"""Data sets and models that only the program has which trains."""


def given_lines(config: Config) -> Iterator[str]:
    """Warn if a program gave parts of the run, such as the model, as Python objects; no file has them."""
    data = config.dataset
    named = [
        ("data set", data.name, data.name in GIVEN_DATA),
        ("model", data.model, data.model in GIVEN_MODELS),
    ]
    named += [("loss", data.loss, False), ("partition", data.partition, False)]
    named += [("metric", name, False) for name in data.metrics or ()]
    named += [("extension", name, False) for name in config.run.extensions or {}]
    given = [f"the {kind} {name}" for kind, name, known in named if known or name.startswith(OF_PYTHON)]
    if given:
        yield (
            f"no file of this run holds {', '.join(given)}, which a program gave: from its files alone "
            "nobody can repeat or resume the run, or look at what these compute"
        )


UNUSED = 0.5
"""Of a budget: where a whole run spends less, turns or rounds do not fit into the rest of it."""


def unspent(budgets: Sequence[float], spent: Sequence[float]) -> Iterator[str]:
    """Warn if groups use less than half of their budgets."""
    groups = [
        f"group {index} {used:.2g} of {budget:g}"
        for index, (budget, used) in enumerate(zip(budgets, spent, strict=True))
        if not isinf(budget) and used < UNUSED * budget
    ]
    if groups:
        yield (
            f"budgets are used only in part, since one more turn would not fit: {', '.join(groups)}; raise "
            "privacy.sampling_rate, or use method=gdpfed_star"
        )


def large_delta_lines(plan: PrivacyPlan) -> Iterator[str]:
    """Warn if delta is larger than the default for this number of clients."""
    usual = default_delta(plan.num_clients)
    if plan.private and plan.delta > usual:
        yield (
            f"delta {plan.delta:.3g} is large for {plan.num_clients} clients: up to that probability a "
            f"client may be exposed altogether, whatever its epsilon, and one of them all with up to "
            f"{100 * exposure(plan.num_clients, plan.delta):.2g} %. The default is {usual:.3g}: leave "
            "privacy.delta out, or choose a smaller one"
        )


def _strictest_for_all(plan: PrivacyPlan, config: Config) -> Iterator[str]:
    """Warn if several budgets were given and the method holds everybody to the strictest of them."""
    given = config.privacy.budgets
    if given in (CLIENTS, config.dataset.budgets) or len(set(given)) == 1:
        return
    if config.privacy.budgets_of == "clients" and {group.epsilon for group in plan.groups} == {min(given)}:
        yield (
            f"privacy.budgets={given} are several, and method={config.method.name} holds everybody to the "
            f"strictest, {min(given):g}: give that one alone, or use a method in which larger budgets count "
            "(docs/which_method.md)"
        )


LARGE_EPSILON = 20.0
"""Above it a promise is worth next to nothing; usual ones are below 10."""


def large_epsilon_lines(plan: PrivacyPlan) -> Iterator[str]:
    """Warn if a budget is so large that its promise hides next to nothing."""
    report = report_of(plan)
    largest = max((each for each in report.budgets(plan) if not isinf(each)), default=0.0)
    if largest > LARGE_EPSILON:
        yield (
            f"epsilon {largest:.4g} protects next to nothing: one {plan.protected} may change a probability "
            f"by a factor of e^{largest:.4g}. Usual budgets are below 10: {report.smaller_budgets}"
        )


def number_or_none(value: float, form: str) -> str:
    """Format a number; "none" if it is infinite."""
    return "none" if isinf(value) else format(value, form)


def against_whom(plan: PrivacyPlan) -> str:
    """Return a sentence that says against which attackers the epsilon of a plan holds."""
    if plan.sums_hidden:
        return (
            "Epsilon holds against everyone: the public, members of the same sums, and a server that follows "
            "the protocol, whether they know who takes part when or not."
        )
    return (
        "Epsilon holds against everyone but the server, whether they know who takes part when or not. The "
        "server is trusted: secure aggregation is off, so it sees single updates and adds the noise."
    )
