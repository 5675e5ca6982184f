"""``gdpfed plan``: print what a run promises, before anything is trained."""

import argparse
import json

from gdpfed.cli.command import Command, add_overrides, make_console, planning

EXAMPLES = """\
gdpfed plan                             the bundled digits, GDPFed+
gdpfed plan dataset=fmnist method=gdpfed privacy.accountant=rdp
gdpfed plan dataset=svhn --compare      every method and every accountant
gdpfed plan privacy.budgets=[0.5,2,8] privacy.group_shares=[0.2,0.3,0.5]"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_overrides(parser, "dataset=fmnist")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    parser.add_argument(
        "--compare",
        action="store_true",
        help="all methods under all accountants, side by side; of records: by what differs with the budget",
    )


def _execute(options: argparse.Namespace) -> int:
    from gdpfed.cli.show_plan import (
        check_model,
        comparison,
        comparison_dict,
        load_unit,
        record_comparison,
        show_plan,
    )
    from gdpfed.methods import make_method
    from gdpfed.report.plan_table import comparison_table
    from gdpfed.report.record_plan_table import record_comparison as record_comparison_table
    from gdpfed.runs.paths import with_saved_delta
    from gdpfed.runs.resume import load_run

    if options.compare:
        of_records = load_unit(options.overrides) == "record"
        with planning():
            rows = record_comparison(options.overrides) if of_records else comparison(options.overrides)
        if options.json:
            _print_json([comparison_dict(*row) for row in rows])
        else:
            make_console().print((record_comparison_table if of_records else comparison_table)(rows))
        return 0
    config = load_run(options.overrides)
    check_model(config, options.overrides)
    with planning():
        method = make_method(with_saved_delta(config))
    if options.json:
        _print_json(method.describe())
    else:
        show_plan(make_console(), config, method)
    return 0


def _print_json(value: object) -> None:
    print(json.dumps(value, indent=2, allow_nan=False))


COMMAND = Command(
    name="plan",
    help="show noise, sampling rates and guarantees before training",
    description="Show what a run would promise every group, and the noise and rates that keep it.",
    examples=EXAMPLES,
    add_arguments=_add_arguments,
    execute=_execute,
)
