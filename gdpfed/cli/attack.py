"""``gdpfed audit --attack``: guess from a finished model who was in its training, beside what is stated."""

import argparse
import json
from dataclasses import asdict

from rich.table import Table

from gdpfed.canaries.model_attack import MembershipGuess, ModelAttack, attack_run
from gdpfed.cli.audit_command import without_infinity
from gdpfed.cli.command import make_console, user_path
from gdpfed.errors import ConfigError
from gdpfed.report.console import Fitted

HEADINGS = ("guessed from", "records of", "members", "others", "AUC", "of nothing told", "TPR at 1 % FPR")
WORDS = (
    "Members are training records, and others are test records, which were kept out without regard to their "
    "content. An AUC within that of nothing told shows nothing. epsilon: less is ruled out; detectable: the "
    "least epsilon at which so few records could have shown anything."
)


def attack_model(options: argparse.Namespace) -> int:
    """Carry out the command; exit status 0 where no more was found than is stated, else 1."""
    if len(options.overrides) != 1:
        raise ConfigError("name one run directory, whose model is attacked with its own data")
    attack = attack_run(user_path(options.overrides[0]), options.confidence)
    if options.json:
        told = asdict(attack) | {"passed": attack.passed}
        print(json.dumps(without_infinity(told), indent=2, allow_nan=False))
    else:
        _show(attack)
    return 0 if attack.passed else 1


def _show(attack: ModelAttack) -> None:
    console = make_console()
    table = Table(title="whose record was trained on", title_justify="left", caption=WORDS)
    for heading in (*HEADINGS, "epsilon", "detectable"):
        table.add_column(heading, justify="left" if heading in HEADINGS[:2] else "right")
    for each in attack.membership:
        table.add_row(*_row(each))
    console.print(Fitted(table))
    stated = (
        "nothing is stated of a record" if attack.stated is None else f"stated: epsilon {attack.stated:.3g}"
    )
    console.print(
        f"{stated}, delta {attack.delta:.3g}, confidence {100 * attack.confidence:g} %", highlight=False
    )
    if attack.site is not None:
        site = attack.site
        console.print(
            f"The party of a test record is guessed from its prediction: {100 * site.right:.1f} % of "
            f"{site.records} rightly (at least {100 * site.low:.1f} %); the largest of {site.parties} has "
            f"{100 * site.base:.1f} %. What is typical of a party no budget of a record covers.",
            highlight=False,
        )
    passed = "No more was found than is stated."
    console.print(passed if attack.passed else "More was found than is stated: it does NOT hold.")


def _row(each: MembershipGuess) -> tuple[str, ...]:
    return (
        each.seen,
        each.whose,
        str(each.members),
        str(each.others),
        f"{each.auc:.3f} ({each.auc_low:.3f}-{each.auc_high:.3f})",
        f"{each.null_low:.3f}-{each.null_high:.3f}",
        f"{100 * each.tpr:.1f} %",
        f"{each.epsilon:.3g}",
        f"{each.detectable:.3g}",
    )
