"""Runs membership inference attacks on finished models: on single records and on whole data owners (parties).

python -m benchmarks.attacks
"""

import tempfile
from math import isinf
from pathlib import Path

from rich.progress import track

from benchmarks.harness import CONSOLE, publish, read_options
from conf.load import load
from gdpfed.extras.canaries.membership import MembershipGuess
from gdpfed.extras.canaries.model_attack import ModelAttack, attack_run
from gdpfed.report.console import Table
from gdpfed.simulation.in_process_fleet import simulate

DIGITS = ("dataset=digits", "privacy.delta=1e-5")
PATIENTS = ("dataset=breast_cancer", "run.num_rounds=100")
TRAININGS = {
    "digits, fedavg": (*DIGITS, "method=fedavg"),
    "digits, gdpfed_star, epsilon 1, 3, 6": (*DIGITS, "method=gdpfed_star"),
    "breast cancer, fedavg": (*PATIENTS, "method=fedavg"),
    "breast cancer, dp_sum, epsilon 1": (
        *(*PATIENTS, "privacy=record_level", "method=dp_sum", "privacy.budgets=[1]"),
    ),
}
HEADINGS = ("training", "of", "guessed from", "AUC", "of nothing told", "epsilon", "detectable", "stated")
NOTE = (
    "AUC with its interval at 95 % for all figures of a training. An epsilon of 0 says nothing below what is "
    "detectable."
)


def attacked(settings: tuple[str, ...], overrides: list[str]) -> ModelAttack:
    """Train a model once, and return the results of membership inference attacks on it."""
    with tempfile.TemporaryDirectory() as directory:
        place = f"run.directory={Path(directory) / 'run'}"
        run = simulate(load(["secagg=off", *settings, *overrides, place]), make_observers=lambda *run: [])
        return attack_run(run)


def row(training: str, of: str, each: MembershipGuess, stated: float | None) -> tuple[str, ...]:
    """Return a table row with the results of one membership inference attack on a model."""
    return (
        *(training, of, each.seen, f"{each.auc:.3f} ({each.auc_low:.3f}-{each.auc_high:.3f})"),
        *(f"{each.null_low:.3f}-{each.null_high:.3f}", f"{each.epsilon:.2f}"),
        "none" if isinf(each.detectable) else f"{each.detectable:.2f}",
        "nothing" if stated is None else f"{stated:.3g}",
    )


def main() -> None:
    """Run membership inference attacks on each model, for records and, if possible, parties; show a table."""
    options = read_options(__doc__, overrides=True)
    rows = []
    for name, settings in track(TRAININGS.items(), "trainings", console=CONSOLE):
        attack = attacked(settings, options.overrides)
        records = [each for each in attack.membership if each.whose == "all"]
        told = [("record", each, attack.stated) for each in records]
        told += [("party", each, attack.stated_of_party) for each in attack.parties]
        rows += [row(name, *each) for each in told]
    publish([Table("Finished models, attacked", HEADINGS, rows, note=NOTE)], options.write)


if __name__ == "__main__":
    main()
