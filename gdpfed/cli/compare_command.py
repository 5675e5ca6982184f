"""``gdpfed compare``: compare a run's model with models that the data owners could train without the run."""

import argparse
import json
from pathlib import Path

from gdpfed.cli.command import Command, cli_path, make_console
from gdpfed.cli.named_runs import finished_runs, require_runs
from gdpfed.decimal_numbers import decimal_number

DEFAULT_PULL = 3.0
PAGE_FOLDER = Path("worth")
EXAMPLES = """\
gdpfed compare runs/mine                      beside each party alone
gdpfed compare runs/seed* --output worth      mean of several seeds
gdpfed compare runs/sweep --html              from which budget on it is worth
gdpfed compare runs/mine --path /data/tables  where the data are now"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "runs",
        nargs="+",
        type=cli_path,
        metavar="RUN",
        help="a run, or a directory with runs in it or one deeper",
    )
    parser.add_argument(
        "--path", type=cli_path, metavar="PATH", help="where their data are now (dataset.path)"
    )
    parser.add_argument(
        "--pull",
        type=decimal_number,
        default=DEFAULT_PULL,
        metavar="L",
        help="lambda of what each party fits near the run's model (default: %(default)s)",
    )
    parser.add_argument(
        "--output", type=cli_path, metavar="DIR", help="write worth.md, worth.json and epsilon.png"
    )
    parser.add_argument(
        "--html",
        action="store_true",
        help=f"write a page with picture and tables, into DIR of --output (default: {PAGE_FOLDER})",
    )
    parser.add_argument("--json", action="store_true", help="print all figures as JSON")
    parser.add_argument("--markdown", action="store_true", help="print the tables as Markdown")


def _execute(options: argparse.Namespace) -> int:
    require_runs(options.runs)
    from gdpfed.errors import ConfigError
    from gdpfed.files import save_whole
    from gdpfed.report.worth_answer import answer_lines, answer_table
    from gdpfed.report.worth_of_lines import side_by_side, worth_by_line
    from gdpfed.report.worth_page import draw_worth, write_worth_page
    from gdpfed.report.worth_shown import shown_tables, small_line

    if not 0 <= options.pull < float("inf"):
        raise ConfigError(f"--pull {options.pull:g} must be 0, for no pull, or more")
    runs = finished_runs(options.runs)
    overrides = [] if options.path is None else [f"dataset.path={options.path.absolute()}"]
    compared = worth_by_line(runs, overrides, options.pull)
    worth = side_by_side({line.label: each for line, each in compared})
    answer, said = answer_table(compared), list(answer_lines(compared))
    values = json.dumps({"answer": said, **worth.to_values()}, indent=1, allow_nan=False)
    tables = [*([answer] if answer else []), *worth.tables()]
    markdown = "\n".join([*(f"{line}\n" for line in said), *(table.to_markdown() for table in tables)])
    folder: Path | None = options.output or (PAGE_FOLDER if options.html else None)
    page = None
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        save_whole(folder / "worth.json", f"{values}\n".encode())
        save_whole(folder / "worth.md", markdown.encode())
        picture = draw_worth(compared, folder)
        page = write_worth_page(worth, compared, picture, folder) if options.html else None
    if options.json or options.markdown:
        print(values if options.json else markdown)
        return 0
    console = make_console()
    for line in said:
        console.print(line)
    for table in [*([answer] if answer else []), *shown_tables(worth)]:
        console.print(table.to_rich())
    if small := small_line(worth):
        console.print(small)
    if page is not None:
        console.print(f"The page is {page}", soft_wrap=True)
    return 0


COMMAND = Command(
    name="compare",
    help="was it worth it: the answer for every budget, beside each party alone and all rows in one place",
    description=(
        "Compare a finished run's model with each party's most frequent class, a model of each party alone, "
        "one of all rows in one place, fedavg without privacy, and one that each party fits to its own rows "
        "near the run's: in all and by party, with 95 % intervals. First comes the answer: with which "
        "budgets the model is better than each party alone, by AUC where one class is rare. It needs the "
        "data of all parties, as a "
        "simulation does. Runs that differ in run.seed alone are averaged; others are rows of their own, "
        "named by what differs. What is trained here is not accounted, and the figures carry no noise."
    ),
    examples=EXAMPLES,
    add_arguments=_add_arguments,
    execute=_execute,
)
