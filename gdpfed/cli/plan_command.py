"""``gdpfed plan``: print a run's noise, sampling rates and epsilons before anything is trained."""

import argparse
import json
from dataclasses import asdict
from math import inf
from typing import TYPE_CHECKING

from gdpfed.cli.command import Command, add_overrides, busy, check_picture, cli_path, make_console
from gdpfed.decimal_numbers import decimal_number, whole_number
from gdpfed.errors import ConfigError, InputError
from gdpfed.report.plan_questions import PLAN_QUESTIONS

if TYPE_CHECKING:
    from pathlib import Path

    from conf.schema import Config
    from gdpfed.report.plan_questions import PlanQuestion

EXAMPLES = """\
gdpfed plan                             the bundled digits, GDPFed+
gdpfed plan dataset=fmnist method=gdpfed privacy.accountant=rdp
gdpfed plan dataset=svhn --compare      every method, both epsilons
gdpfed plan --choose                    rounds, norm and steps, without data
gdpfed plan --epsilons 0.5,1,2,4,8      what each budget buys in noise
gdpfed plan --output turns.png          who takes part when, as a picture
gdpfed plan --price                     what clients spend at posted prices
gdpfed plan privacy.budgets=[0.5,2,8] privacy.group_shares=[0.2,0.3,0.5]"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_overrides(parser, "dataset=fmnist")
    parser.add_argument("--json", action="store_true", help="print the plan as JSON")
    parser.add_argument("--details", action="store_true", help="show every figure and how it was accounted")
    parser.add_argument(
        "--compare",
        action="store_true",
        help="show the plans of all methods side by side, with epsilon against outsiders and against "
        "everyone; --json adds the other accountants",
    )
    parser.add_argument(
        "--choose",
        action="store_true",
        help="propose rounds, norm, local steps and the server's step from public quantities alone, with the "
        "plan that follows; settings that you give stay",
    )
    parser.add_argument(
        "--epsilons",
        type=_numbers,
        metavar="A,B",
        help="the noise of a run under each of these budgets in place of the configured ones",
    )
    for name, question in PLAN_QUESTIONS.items().items():
        parser.add_argument(f"--{name}", action="store_true", help=question.help)
    parser.add_argument(
        "--output",
        type=cli_path,
        metavar="FILE.png",
        help="draw the plan, too: turns and the noise that is taken back, the game of method=fedpcs, or the "
        "results of --price or --epsilons",
    )
    parser.add_argument(
        "--most-rounds",
        type=whole_number,
        metavar="T",
        help="with --choose: consider at most this many rounds (default: 200)",
    )


QUESTIONS = ("compare", "choose", "epsilons")


def _execute(options: argparse.Namespace) -> int:
    from gdpfed.cli.show_plan import check_model, check_parties, show_plan
    from gdpfed.methods import make_method, resolve
    from gdpfed.privacy.sampling.cohort_sizes import refuse_skipped
    from gdpfed.report.mechanism_reports import report_of
    from gdpfed.report.party_lines import party_dict, party_names
    from gdpfed.report.plan_lines import inference_dict, replacement_dict
    from gdpfed.runs.resume import load_run

    asked = [f"--{name}" for name in (*QUESTIONS, *PLAN_QUESTIONS.names()) if getattr(options, name)]
    if len(asked) > 1:
        raise InputError(f"{' and '.join(asked)} are given: each is a question of its own, ask one at a time")
    if options.most_rounds is not None and not options.choose:
        raise InputError(
            f"--most-rounds {options.most_rounds} needs --choose: add it, or leave this option out"
        )
    picture: Path | None = options.output
    if picture is not None:
        check_picture(picture)
    if options.compare or options.epsilons:
        return _compare_methods(options) if options.compare else _compare_budgets(options)
    config = load_run(options.overrides)
    check_parties(config, options.overrides)
    check_model(config, options.overrides)
    if options.choose:
        _refuse_picture(picture)
        return _propose_settings(config, options)
    for name in PLAN_QUESTIONS.names():
        if getattr(options, name):
            return _answer_question(PLAN_QUESTIONS.get(name), config, options)
    with busy("planning ..."):
        config = resolve(config)
        method = make_method(config)
    refuse_skipped(method.plan, method.least_members(config))
    if picture is not None and not (
        method.draw_plan(picture) or report_of(method.plan).draw(method.plan, party_names(config), picture)
    ):
        raise ConfigError(
            f"--output={picture}: this plan has no picture: leave --output out; there are pictures with "
            "privacy.against=everyone, method=fedpcs, --price and --epsilons"
        )
    if options.json:
        plan = method.plan
        bounds = {"inference_bounds": inference_dict(plan), "replacement_bounds": replacement_dict(plan)}
        _print_json({**method.describe(), **bounds, **party_dict(config, plan)})
    else:
        show_plan(make_console(), config, method, details=options.details)
    return 0


def _compare_methods(options: argparse.Namespace) -> int:
    """Show the privacy plans (noise, rates, epsilon) of all methods side by side."""
    from gdpfed.cli import show_plan
    from gdpfed.report.plan_table import plan_comparison
    from gdpfed.report.record_comparison import record_comparison

    _refuse_picture(options.output)
    if show_plan.load_unit(options.overrides) == "record":
        with busy("planning ..."):
            of_records = show_plan.record_comparison(options.overrides)
        entries = [show_plan.record_comparison_dict(*row) for row in of_records]
        shown = record_comparison(of_records)
    else:
        asked = [
            each.partition("=")[2] for each in options.overrides if each.startswith("privacy.accountant=")
        ]
        every = show_plan.ACCOUNTANTS if options.json else (*asked, show_plan.ACCOUNTANTS[0])[:1]
        with busy("planning ..."):
            rows = show_plan.comparison(options.overrides, every)
        entries, shown = [show_plan.comparison_dict(row) for row in rows], plan_comparison(rows)
    _print_json(entries) if options.json else make_console().print(shown)
    return 0


def _propose_settings(config: "Config", options: argparse.Namespace) -> int:
    """Propose settings for a run, and show them with the privacy plan that they give."""
    from conf.load import load
    from gdpfed.cli.show_plan import show_plan
    from gdpfed.methods import make_method, resolve
    from gdpfed.methods.choose import MOST_ROUNDS, choose
    from gdpfed.report.plan_table import choice_report

    with busy("planning ..."):
        choice = choose(config, options.overrides, options.most_rounds or MOST_ROUNDS)
        config = resolve(load([*options.overrides, *choice.overrides]))
        method = make_method(config)
    if options.json:
        candidates = [asdict(candidate) for candidate in choice.candidates]
        proposals = [asdict(proposal) for proposal in choice.proposals]
        proposed = {"candidates": candidates, "proposals": proposals, "weaker": choice.weaker}
        _print_json({**proposed, "plan": method.describe()})
    else:
        console = make_console()
        console.print(choice_report(choice))
        show_plan(console, config, method, details=options.details)
    return 0


def _numbers(text: str) -> list[float]:
    """Parse a comma-separated list of positive numbers; return them in ascending order."""
    try:
        numbers = sorted({decimal_number(word.strip()) for word in text.split(",")})
    except ValueError:
        numbers = []
    if not numbers or not 0 < numbers[0] <= numbers[-1] < inf:
        raise argparse.ArgumentTypeError(f"{text} must be numbers above 0, as in 0.5,1,2")
    return numbers


def _compare_budgets(options: argparse.Namespace) -> int:
    """Show how much noise each of several privacy budgets needs."""
    from gdpfed.report.budget_noise import budget_noises, budget_text, draw_budgets

    with busy("planning ..."):
        noises = budget_noises(options.overrides, options.epsilons)
    if options.json:
        _print_json([asdict(noise) for noise in noises])
    else:
        print(budget_text(noises))
    if options.output is not None:
        draw_budgets(noises, options.output)
    return 0


def _answer_question(question: "PlanQuestion", config: "Config", options: argparse.Namespace) -> int:
    """Compute and show the answer to a question about a plan, such as ``--price``; return the exit status."""
    with busy("planning ..."):
        answer = question.answer(config)
    if options.json:
        _print_json(answer.values)
    else:
        make_console().print(answer.shown)
    if options.output is not None:
        answer.draw(options.output)
    return 0


def _refuse_picture(picture: "Path | None") -> None:
    if picture is not None:
        raise ConfigError(f"--output={picture}: this question has no picture: leave out --output")


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
