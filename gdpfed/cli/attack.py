"""``gdpfed audit --attack``: guess from a finished model who was in its training, beside what is stated."""

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from rich.console import Console
from rich.table import Table

from gdpfed.canaries.membership import MembershipGuess
from gdpfed.canaries.model_attack import ModelAttack, attack_run
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

PARTY_WORDS = (
    "Members are the parties of the run, each with all its records. Others were not in it: tables of "
    "--outside, or test records dealt out at random where the clients' records are random."
)
NO_PARTIES = (
    "Whether a whole party was trained on is told from parties that were not: give --outside FOLDER, tables "
    "of such parties."
)


def attack_model(options: argparse.Namespace) -> int:
    """Carry out the command; exit status 0 where no more was found than is stated, else 1."""
    if len(options.overrides) != 1:
        raise ConfigError("name one run directory, whose model is attacked with its own data")
    attack = attack_run(user_path(options.overrides[0]), options.confidence, options.outside)
    if options.json:
        told = asdict(attack) | {"passed": attack.passed}
        print(json.dumps(without_infinity(told), indent=2, allow_nan=False))
    else:
        _show(attack)
    return 0 if attack.passed else 1


def _show(attack: ModelAttack) -> None:
    console = make_console()
    console.print(Fitted(_table("whose record was trained on", attack.membership, WORDS)))
    _print_stated(console, attack, "record", attack.stated)
    if attack.parties:
        console.print(Fitted(_table("which whole party was trained on", attack.parties, PARTY_WORDS)))
        _print_stated(console, attack, "party", attack.stated_of_party)
    else:
        console.print(NO_PARTIES, highlight=False)
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


def _table(title: str, guesses: Sequence[MembershipGuess], words: str) -> Table:
    table = Table(title=title, title_justify="left", caption=words)
    for heading in (*HEADINGS, "epsilon", "detectable"):
        table.add_column(heading, justify="left" if heading in HEADINGS[:2] else "right")
    for each in guesses:
        table.add_row(*_row(each))
    return table


def _print_stated(console: Console, attack: ModelAttack, one: str, stated: float | None) -> None:
    words = f"nothing is stated of a {one}" if stated is None else f"stated: epsilon {stated:.3g}"
    console.print(
        f"{words}, delta {attack.delta:.3g}, confidence {100 * attack.confidence:g} %", highlight=False
    )


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
