"""What an attacker's best guess is, in words: in a plan and in a model card."""

from collections.abc import Iterator

from gdpfed.privacy.accountants.guesses import BestGuess
from gdpfed.privacy.plan import PrivacyPlan

PROOFS = {
    "nothing": "nothing was told",
    "no noise": "without noise",
    "gaussian": "exactly, of Gaussians",
    "pld": "by privacy loss distributions",
    "rdp": "by Renyi divergences, which fixed_size sampling is bounded by, so a guess may be worse",
}


def guess_line(plan: PrivacyPlan) -> str:
    """One line on the best guesses of who sees the models of a whole run, group by group."""
    guesses = [plan.best_guess(index, None, number) for index, number, _ in _protected(plan)]
    alarms = ", ".join(f"{100 * each.true_alarms:.1f}" for each in guesses)
    right = ", ".join(f"{100 * each.right_at_even_odds:.1f}" for each in guesses)
    return (
        f"Guessing from the models whether a {plan.unit} took part: at most {alarms} % true alarms at 1 % "
        f"false ones; at even odds at most {right} % right."
    )


def guess_lines(plan: PrivacyPlan, charged_rounds: int) -> list[str]:
    """A table of the best guesses after so many rounds, as Markdown.

    Where clients are protected it has those of members of a client's sums, too, for as many rounds as 99 % of
    clients take part in at most. Of records everybody knows as much.
    """
    rows, proofs, of_members = [], set(), plan.unit == "client"
    for index, number, name in _protected(plan):
        seen = [plan.best_guess(index, charged_rounds, number)]
        if of_members:
            seen.append(plan.best_guess_of_members(index, plan.groups[index].participations_p99))
        proofs.add(seen[0].proof)
        rows.append(f"| {name} | {' | '.join(_cells(each) for each in seen)} |")
    others = f" {_others(plan)}: true alarms | right at even odds |" if of_members else ""
    return [
        "",
        "As a guess: somebody who knows everything else tries to tell from the models whether a "
        f"{plan.unit} took part. With false alarms in 1 % of the cases where it did not, true alarms come in "
        "at most so many of those "
        "where it did; where both are as likely, the guess is right at most so often (1 % and 50 % are those "
        f"of a coin). Computed {' and '.join(sorted(PROOFS[each] for each in proofs))}.",
        "",
        f"| group | true alarms at 1 % false ones | right at even odds |{others}",
        "|---|---:|---:|" + ("---:|---:|" if of_members else ""),
        *rows,
    ]


def guesses_dict(plan: PrivacyPlan) -> list[dict[str, object]]:
    """The best guesses of a whole run in their JSON form, group by group."""
    members = {
        index: plan.best_guess_of_members(index, group.participations_p99).to_dict()
        for index, group in enumerate(plan.groups)
        if plan.unit == "client"
    }
    return [
        {"group": name, **plan.best_guess(index, None, number).to_dict()}
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


def _cells(guess: BestGuess) -> str:
    return f"{100 * guess.true_alarms:.1f} % | {100 * guess.right_at_even_odds:.1f} %"


def _others(plan: PrivacyPlan) -> str:
    return "the server and members of its sums" if plan.sums_hidden else "members of its sums"
