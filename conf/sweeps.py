"""Sweeps: settings with several values, and Hydra's launchers, which run many jobs.

A job's configuration is composed by :func:`conf.load.load`, so a launcher is told the number of a job alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, product
from math import prod
from pathlib import Path
from typing import Any, cast

from hydra import compose
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Glob, RangeSweep
from hydra.errors import HydraException

from conf.errors import ConfigError, not_known, words_of
from conf.load import hydra_string, options, refuse_twice, with_quoted_path
from conf.option_files import initialized, method_configs

LAUNCHER = "hydra/launcher"
BASIC = "basic"
"""Hydra's own launcher, which runs one job after the other in this process."""
PLUG_INS = ("joblib", "ray", "rq", "submitit")
"""Launchers that Hydra's developers publish as plug-in packages."""
MOST_JOBS = 10_000
"""Of one sweep, and values of one of its settings."""
_QUIET = ("hydra/hydra_logging=none", "hydra/job_logging=none", "hydra.output_subdir=null")


@dataclass(frozen=True)
class Job:
    """One training of a sweep: one combination of the values that the sweep's settings list.

    `overrides`: what :func:`conf.load.load` composes. `differing`: those of them that other jobs have not.
    """

    overrides: tuple[str, ...]
    differing: tuple[str, ...]


def jobs_of(overrides: Sequence[str]) -> list[Job]:
    """Return each combination of the values in settings such as ``["method=fedavg,dp_sum", "run.seed=0"]``.

    Hydra's grammar: ``a,b``, ``choice(a,b)``, ``range(0,3)``, and ``glob(dp_*)`` for the options of a group.
    A path has quotes where it is one of several. Raises ConfigError: no values to count, more than
    `MOST_JOBS` combinations, or a setting with several that is there twice, as in `refuse_twice`.
    """
    given = tuple(dict.fromkeys(overrides))
    values = [_values(override) for override in given]
    if (count := prod(map(len, values))) > MOST_JOBS:
        raise ConfigError(
            f"these settings stand for {count:,} runs, and a sweep has at most {MOST_JOBS:,}: give fewer "
            "values"
        )
    swept = [len(value) > 1 for value in values]
    keys = [override.partition("=")[0] for override in given]
    several = {key for key, among in zip(keys, swept, strict=True) if among}
    refuse_twice([override for key, override in zip(keys, given, strict=True) if key in several])
    return [
        Job(combination, tuple(word for word, among in zip(combination, swept, strict=True) if among))
        for combination in product(*values)
    ]


def _values(override: str) -> list[str]:
    key = override.partition("=")[0]
    try:
        parsed = OverridesParser.create().parse_override(with_quoted_path(override))
    except HydraException:
        return [override]  # What is wrong with it, load says.
    if not parsed.is_sweep_override():
        return [override]
    if not parsed.is_discrete_sweep():
        raise ConfigError(f"'{override}' has no values to count: list them, as in {key}=1,2, or give a range")
    value = parsed.value()
    if isinstance(value, RangeSweep):
        _check_range(override, value)
    words = value.filter(list(options(key))) if isinstance(value, Glob) else parsed.sweep_string_iterator()
    found = [f"{key}={word}" for word in words]
    if not found:
        known = ", ".join(options(key))
        remedy = f"the options are {known}" if known else f"list them, as in {key}=1,2"
        raise ConfigError(f"'{override}' stands for no value: {remedy}")
    return found


def _check_range(override: str, value: RangeSweep) -> None:
    """Raise ConfigError for a range that Hydra cannot count, or that has too many values."""
    key = override.partition("=")[0]
    try:
        count = sum(1 for _ in islice(value.range(), MOST_JOBS + 1))
    except (ValueError, ArithmeticError, HydraException):
        raise ConfigError(
            f"'{override}' is not a range: give where it begins and ends, and a step other than 0, as in "
            f"{key}=range(0,10,2)"
        ) from None
    if count > MOST_JOBS:
        raise ConfigError(
            f"'{override}' has more than {MOST_JOBS:,} values, and a sweep has at most {MOST_JOBS:,} runs: "
            "give a shorter range"
        )


def parted(overrides: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split settings (key=value) into those for Hydra's launcher and all others.

    Raises ConfigError: a launcher that is not installed, or a setting that it has not.
    """
    ours = [override for override in overrides if not override.lstrip("+").startswith(("hydra/", "hydra."))]
    words = [override for override in overrides if override not in ours]
    for word in words:
        if not word.lstrip("+").startswith((f"{LAUNCHER}=", "hydra.launcher.")):
            raise ConfigError(f"'{word}' sets Hydra itself, of which only the launcher is used: leave it out")
    if not words:
        return words, ours
    with initialized(tuple(method_configs().items())):
        known = GlobalHydra.instance().config_loader().get_group_options(LAUNCHER)
        for word in words:
            name = word.partition("=")[2]
            if word.startswith(f"{LAUNCHER}=") and name not in known:
                kind = name.partition("_")[0]
                remedy = f"; pip install hydra-{kind}-launcher first" if kind in PLUG_INS else ""
                raise ConfigError(f"{not_known(word, known)}{remedy}")
        try:
            compose(overrides=words, return_hydra_config=True)
        except HydraException as error:
            raise ConfigError(f"{' '.join(words)}: {words_of(error)}") from None
    return words, ours


def launch(words: Sequence[str], task: Callable[[int], Any], count: int, directory: Path) -> list[Any]:
    """Let a Hydra launcher call ``task`` with 0 to ``count - 1``; return the results in order.

    `words`: those of :func:`parted`. `directory`: for the launcher's own files. Raises what a launcher does.
    """
    numbers = ",".join(str(number) for number in range(count))
    own = (*_QUIET, f"hydra.sweep.dir={hydra_string(str(directory))}", "hydra.sweep.subdir=.")
    with initialized(tuple(method_configs().items())):
        hydra = cast("Any", GlobalHydra.instance().hydra)
        batches = hydra.multirun(
            config_name=None, task_function=partial(_job, task), overrides=[*own, *words, f"+job={numbers}"]
        )
    return [job.return_value for batch in batches for job in batch]


def _job(task: Callable[[int], Any], config: Any) -> Any:
    return task(config.job)
