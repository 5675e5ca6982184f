"""The membership inference bounds of a plan as text: for a plan, a model card and JSON."""

from collections.abc import Iterator

from gdpfed.privacy.accountants.inference_bound import InferenceBound
from gdpfed.privacy.plan import PrivacyPlan

PROOFS = {
    "nothing": "nothing was told",
    "no noise": "without noise",
    "gaussian": "exactly, of Gaussians",
    "pld": "by privacy loss distributions",
    "rdp": "by Renyi divergences, which fixed_size sampling is bounded by, which is looser",
}


def inference_line(plan: PrivacyPlan) -> str:
    """One line on the bounds for attackers who see the models of a whole run, group by group."""
    bounds = [plan.inference_bound(index, None, number) for index, number, _ in _protected(plan)]
    tpr = ", ".join(f"{100 * each.tpr_at_1_percent_fpr:.1f}" for each in bounds)
    accuracy = ", ".join(f"{100 * each.accuracy_at_even_odds:.1f}" for each in bounds)
    seen = "models, all sums and turns" if plan.mechanism.against_everyone else "the models"
    return (
        f"Membership inference of a {plan.unit} from {seen}: at most {tpr} % true positives at 1 % false "
        f"positives; at even odds an accuracy of at most {accuracy} %."
    )


def inference_lines(plan: PrivacyPlan, charged_rounds: int) -> list[str]:
    """A table of the bounds after so many rounds, as Markdown.

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
        rows.append(f"| {name} | {' | '.join(_cells(each) for each in bounds)} |")
    others = f" {_others(plan)}: true positives | accuracy at even odds |" if of_members else ""
    return [
        "",
        "Membership inference: an attacker who knows everything else tries to tell from the models whether a "
        f"{plan.unit} took part. At a false positive rate of 1 % its true positive rate is at most so large; "
        "where both cases are equally likely, its accuracy is (random guessing scores 1 % and 50 %). "
        f"Computed {' and '.join(sorted(PROOFS[each] for each in proofs))}.",
        "",
        f"| group | true positives at 1 % false positives | accuracy at even odds |{others}",
        "|---|---:|---:|" + ("---:|---:|" if of_members else ""),
        *rows,
    ]


def inference_dict(plan: PrivacyPlan) -> list[dict[str, object]]:
    """The bounds of a whole run in their JSON form, group by group."""
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
    """Group, group of records (0 where there are none), and how both are called."""
    for index in range(len(plan.groups)):
        for number, records in enumerate(plan.mechanism.record_groups(index)):
            yield index, number, f"{index}, records of budget {records.epsilon:g}"
        if not plan.mechanism.record_groups(index):
            yield index, 0, str(index)


def _cells(bound: InferenceBound) -> str:
    return f"{100 * bound.tpr_at_1_percent_fpr:.1f} % | {100 * bound.accuracy_at_even_odds:.1f} %"


def _others(plan: PrivacyPlan) -> str:
    return "the server and members of its sums" if plan.sums_hidden else "members of its sums"
