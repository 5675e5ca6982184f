"""``gdpfed stats``: count rows by column before a model is trained, and show noised counts."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from gdpfed.cli.command import Command, add_overrides, cli_path, make_console, named_path
from gdpfed.errors import ConfigError
from gdpfed.report.run_folders import is_run

EXAMPLES = """\
gdpfed stats dataset.path=/data/patients.csv 'privacy.budgets=[1]'
gdpfed stats dataset.path=/data/wards method=record_statistics method.by=sex
gdpfed stats dataset.path=wards method=record_statistics method.by_party=true
gdpfed stats dataset.path=/data/wards --fill columns.yaml   ranges for a model
gdpfed stats runs/20260101-120000-csv-record_statistics   those of a run"""
LEVEL, CLIENT_LEVEL = "record_level", ("privacy=client_level", "privacy.unit=client")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    add_overrides(parser, "dataset.path=/data/patients.csv, or the directory of a run")
    parser.add_argument(
        "--fill",
        type=cli_path,
        metavar="FILE",
        help="write the declaration anew, with LOW and HIGH of its columns from the noised quantiles",
    )
    parser.add_argument("--flower", action="store_true", help="count over Flower, as gdpfed run trains")


def _execute(options: argparse.Namespace) -> int:
    if options.fill is not None and options.fill.exists():
        raise ConfigError(f"--fill={options.fill} exists: name another file, or remove it")
    # Either an existing run is named, or new statistics are counted.
    named = [word for word in options.overrides if "=" not in word]
    directory = _directory(named[0], options.overrides) if named else _count(options)
    from gdpfed.extras.statistics.page import write_page
    from gdpfed.extras.statistics.result import Statistics
    from gdpfed.extras.statistics.shown import heading, note, tables_of

    console, found = make_console(), Statistics.read(directory)
    if found is None:
        raise ConfigError(
            f"{directory} has no statistics: see {directory}/rounds.jsonl for why there is no sum"
        )
    console.print(heading(found), soft_wrap=True)
    for table in tables_of(found):
        console.print(table.to_rich())
    console.print(note(found), highlight=False)
    console.print(f"\n{write_page(found, directory)} has them with pictures", soft_wrap=True)
    if options.fill is not None:
        from gdpfed.extras.statistics.fill import fill

        for line in fill(found, directory, options.fill):
            print(line)
        print(f"The declaration with these ranges is in {options.fill}; it cost no more than the counts did")
    return 0


def _directory(word: str, words: Sequence[str]) -> Path:
    """Return the directory of a run that is named in place of settings.

    `words`: all that is given. Raises ConfigError: it is no run, or settings are given beside it.
    """
    directory = named_path(word)
    if not directory.exists():
        raise ConfigError(f"{word} is neither an override nor the directory of a run: give one of both")
    if not is_run(directory):
        raise ConfigError(f"{word} is not the directory of a run: for tables write dataset.path={word}")
    if len(words) > 1:
        other = next((each for each in words if each != word), word)
        raise ConfigError(f"{word} is a run that has counted, and {other} is given beside it: leave out one")
    return directory


def overrides_of(words: Sequence[str]) -> list[str]:
    """Return all settings (key=value) of a statistics run: the given ones, and others derived from these."""
    keys = {word.partition("=")[0] for word in words}
    client = any(word in CLIENT_LEVEL for word in words)
    follow = {
        "dataset": "csv",
        "dataset.model": _kind(words),
        "method": f"{'client' if client else 'record'}_statistics",
        **({} if client else {"privacy": LEVEL}),
    }
    return [*(f"{key}={value}" for key, value in follow.items() if key not in keys), *words]


def _kind(words: Sequence[str]) -> str:
    """Return the name of the model that counts what settings ask for, read as a run reads them."""
    from conf.load import given_value
    from gdpfed.extras.statistics.layout import Asked

    by, crossed, by_party, survival = (
        given_value(words, f"method.{key}") for key in ("by", "crossed", "by_party", "survival")
    )
    pairs = ((str(crossed), ""),) if crossed else ()
    return Asked(by=by, crossed=pairs, parties=int(_is_true(by_party)), survival=_is_true(survival)).kind


def _is_true(value: object) -> bool:
    """Whether a setting's value is one that a run reads as true, such as ``yes``."""
    from omegaconf import BooleanNode, ValidationError

    try:
        return bool(BooleanNode(value) == BooleanNode(True))
    except ValidationError:
        return False  # What is wrong with it, load says.


def _count(options: argparse.Namespace) -> Path:
    """Count private statistics in a simulation or over Flower; return the run's directory."""
    from gdpfed.cli.simulated_run import require_path
    from gdpfed.runs.resume import load_run

    overrides = overrides_of(options.overrides)
    config = load_run(overrides)
    require_path(config)
    from gdpfed.runs.paths import reserved, run_path

    if options.flower:
        from gdpfed.cli.run_command import COMMAND as RUN

        chosen = config.run.directory or config.run.resume
        directory = run_path(chosen, config.dataset.name, config.method.name)
        if chosen is None:
            directory = reserved(directory)
            overrides.append(f"run.directory={directory}")
        RUN.execute(argparse.Namespace(overrides=overrides))
        return directory
    from gdpfed.cli.command import busy
    from gdpfed.rounds.run import PreparedRun
    from gdpfed.simulation.in_process_fleet import simulate_prepared

    with busy("planning ..."):
        prepared = PreparedRun.of(config)
        return simulate_prepared(prepared)


COMMAND = Command(
    name="stats",
    help="count before a model: means, quantiles, tables",
    description=(
        "Count how many records are in each bin and value of each declared column, within groups "
        "(method.by), at each party (method.by_party) and by pairs of columns (method.crossed), as one "
        "masked, noised sum that is charged as a training is. Means, standard deviations and quantiles "
        "follow from the counts and cost nothing more.\n\n"
        "Each record counts once, or each person where the columns declare persons; with "
        "privacy=client_level each client does. Every figure has its interval for the noise beside it."
    ),
    examples=EXAMPLES,
    add_arguments=_add_arguments,
    execute=_execute,
)
