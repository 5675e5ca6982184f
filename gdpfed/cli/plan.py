"""``gdpfed plan``: print what a run promises, before anything is trained."""

import argparse
import json
from collections.abc import Sequence

from conf.load import load
from conf.schema import Config
from gdpfed.cli.command import Command, add_overrides, make_console
from gdpfed.cli.show_plan import show_plan
from gdpfed.errors import ConfigError, PrivacyError
from gdpfed.methods import METHODS, make_method
from gdpfed.methods.base import Method
from gdpfed.report.plan_table import comparison_table

ACCOUNTANTS = ("pld", "rdp", "theorem1")
EXAMPLES = """\
gdpfed plan                                       the bundled digits, GDPFed+
gdpfed plan dataset=fmnist method=gdpfed privacy.accountant=rdp
gdpfed plan dataset=svhn --compare                every method and accountant side by side
gdpfed plan privacy.budgets=[0.5,2,8] privacy.group_shares=[0.2,0.3,0.5] --json"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_overrides(parser, "dataset=fmnist")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    parser.add_argument(
        "--compare", action="store_true", help="all methods under all accountants, side by side"
    )


def _execute(options: argparse.Namespace) -> int:
    if options.compare:
        _compare(options.overrides, as_json=options.json)
        return 0
    config = load(options.overrides)
    _check_model(config, options.overrides)
    method = make_method(config)
    if options.json:
        print(json.dumps(method.describe(), indent=2, allow_nan=False))
    else:
        show_plan(make_console(), config, method)
    return 0


def _check_model(config: Config, overrides: Sequence[str]) -> None:
    """Refuse a model that there is not, or options that it does not have, where one is named.

    Models are made of torch, which takes seconds to import, so a data set's own is left to its run.

    Raises:
        LearningError: names the model or the option.
    """
    if any(override.startswith("dataset.model") for override in overrides):
        from gdpfed.learning.models import check_model

        check_model(config.dataset.model, tuple((config.dataset.model_options or {}).items()))


def _compare(overrides: Sequence[str], *, as_json: bool) -> None:
    rows = _comparison(overrides)
    if as_json:
        print(json.dumps([_comparison_dict(*row) for row in rows], indent=2, allow_nan=False))
    else:
        make_console().print(comparison_table(rows))


def _comparison(overrides: Sequence[str]) -> list[tuple[str, str, Method | str]]:
    fixed = ("method=", "privacy.accountant=")
    common = [override for override in overrides if not override.startswith(fixed)]
    _check_model(load(common), common)
    return [
        (
            name,
            accountant,
            _method_or_reason([*common, f"method={name}", f"privacy.accountant={accountant}"]),
        )
        for name in METHODS.names()
        for accountant in (ACCOUNTANTS if name != "fedavg" else ("pld",))
    ]


def _method_or_reason(overrides: Sequence[str]) -> Method | str:
    try:
        return make_method(load(overrides))
    except (ConfigError, PrivacyError) as error:
        return str(error)


def _comparison_dict(name: str, accountant: str, method: Method | str) -> dict[str, object]:
    outcome: dict[str, object] = {"refused": method} if isinstance(method, str) else method.describe()
    return {"method": name, "accountant": accountant, **outcome}


COMMAND = Command(
    name="plan",
    help="show noise, sampling rates and guarantees before training",
    description="Show what a run would promise every group, and the noise and rates that keep it.",
    examples=EXAMPLES,
    add_arguments=_add_arguments,
    execute=_execute,
)
