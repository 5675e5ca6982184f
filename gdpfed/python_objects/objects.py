"""Python objects as settings of a run: data, models, losses, metrics, partitions, extensions.

Each object is registered in this process under a name that begins with ``python.``, and chosen by that name
as anything else is. So plan, ledger, files and audit take the run as any other, and its files say which parts
of it no file holds: another process, which was not given them, refuses these names.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any, TypedDict

from conf.load import compose_options, given_value
from conf.schema import CLIENTS, Config
from conf.schema.run_config import LOCAL
from gdpfed.errors import ConfigError, not_known
from gdpfed.late_import import packages_needed
from gdpfed.methods.party_budgets import budgets_in_order
from gdpfed.python_objects.named import KEYS as NAMED_KEYS
from gdpfed.python_objects.named import Named, names_of
from gdpfed.report.finished_run import read_settings
from gdpfed.runs.paths import run_path

if TYPE_CHECKING:
    from gdpfed.learning.data import Dataset

DATASET = "python"
FEWEST_A_ROUND, USUAL_RATE = 30, 0.2
"""Defaults for the clients in a round: at least this number, or this fraction of all if that is more."""
STARTS = (
    *("model", "num_rounds", "clipping_norm", "local_steps", "batch_size", "learning_rate"),
    *("learning_rate_decay", "momentum"),
)
"""Settings for which data in a table have defaults of their own."""

_PLACED = Lock()
"""Held while this process has data of the calling program: all such data go by one name."""


class Objects(TypedDict, total=False):
    """The Python objects that `plan`, `simulate` and `command` accept in place of settings.

    Attributes:
        data: (x_train, y_train, x_test, y_test) as arrays; a data frame, with `columns`; or a `Dataset`.
        owners: whose each training example is, a name or a number each; of a data frame the name of a column.
        columns: of a data frame, what its columns are, as a mapping or the path of a columns.yaml.
        clients: N, where nobody owns the data, or of a plan without data (``dataset.num_clients``).
        budgets: epsilon of each group of equal size, of all, or of each owner by name (``privacy.budgets``).
        rounds: T (``run.num_rounds``).
        method: by name (``method``).
        model: a torch module, which is copied and starts from its own numbers; a function ``(input_shape,
            num_classes) -> module``; or a name (``dataset.model``).
        loss: a function ``(outputs, targets) -> losses``, one a record, or a name (``dataset.loss``).
        metrics: functions ``(outputs, targets) -> figure`` of arrays, or names (``dataset.metrics``).
        partition: a function ``(data, num_clients, seed) -> positions of every client``, or a name.
        extensions: instances of `Extension` (`gdpfed.rounds.extensions.base`), each for one run.
    """

    data: Any
    owners: Any
    columns: Any
    clients: int
    budgets: Any
    rounds: int
    method: str
    model: Any
    loss: Any
    metrics: Any
    partition: Any
    extensions: Any


KEYS = {
    "data": "dataset",
    "clients": "dataset.num_clients",
    "budgets": "privacy.budgets",
    "rounds": "run.num_rounds",
    "method": "method",
    **NAMED_KEYS,
}
"""The setting that each argument replaces; owners and columns belong to the data."""


@dataclass
class Given:
    """Settings and Python objects that together describe a run.

    `words`: all of it as settings. `data`: what was given; None without. `chosen`: objects that are chosen by
    name.
    """

    words: list[str]
    data: "Dataset | None" = None
    chosen: Named = field(default_factory=Named)

    @contextmanager
    def placed(self, config: Config) -> Iterator[None]:
        """Make the calling program's data available to this process until the ``with`` block ends.

        Data of files are read anew.

        Raises LearningError, ConfigError: a setting that has no meaning for them, machines that lack them, or
        another run of this process that has data of the program.
        """
        if config.simulation.backend != LOCAL and self.chosen.of_clients:
            raise ConfigError(
                f"simulation.backend={config.simulation.backend} trains on machines that have no objects of "
                f"this program, and {next(iter(self.chosen.of_clients))} is an object of it: make it a "
                f"package (docs/extending.md), or train here, with simulation.backend={LOCAL}"
            )
        if self.data is None:
            # A file may have changed since this program read it for an earlier run.
            if (imported := sys.modules.get("gdpfed.learning.data.source")) is not None:
                imported.load_dataset.cache_clear()
            yield
            return
        with packages_needed():
            from gdpfed.clients.configured import source_of
            from gdpfed.learning.data.source import dataset_placed

        source = source_of(config).without_features
        source.allow("test_fraction")
        if not _PLACED.acquire(blocking=False):
            raise ConfigError(
                "data: another run of this process has data of this program, and would be given these: wait "
                "for its end, or start each in a process of its own"
            )
        try:
            with dataset_placed(source, self.data):
                yield
        finally:
            _PLACED.release()


def given(settings: Sequence[str], objects: Mapping[str, Any]) -> Given:
    """Check settings and Python objects, and register the objects that settings choose by name.

    Raises ConfigError, LearningError: an object that cannot be used, or that says what a setting says.
    """
    objects = {name: item for name, item in objects.items() if item is not None}
    _refuse_unknown(settings, objects)
    resumed = given_value(settings, "run.resume")
    saved = None if resumed is None else read_settings(run_path(str(resumed), "", ""))
    made = Given(list(settings))
    if not objects:
        return made
    if "data" in objects:
        with packages_needed():
            from gdpfed.learning.data.in_memory import dataset_of

            made.data = dataset_of(
                objects["data"],
                owners=objects.get("owners"),
                columns=objects.get("columns"),
                test_fraction=given_value(settings, "dataset.test_fraction"),
            )
    words = [] if any(setting.startswith("dataset=") for setting in settings) else [f"dataset={DATASET}"]
    words += [f"method={objects['method']}"] if "method" in objects else []
    words += [f"{KEYS[name]}={objects[name]}" for name in ("clients", "rounds") if name in objects]
    kind = "classes" if made.data is None else made.data.labels.name
    made.chosen = names_of(objects, kind, saved or {})
    words += made.chosen.words
    budgets: Any = objects.get("budgets")
    if hasattr(budgets, "items"):
        named = {str(name): _number(each, f"budgets of {name}") for name, each in budgets.items()}
        if made.data is None or made.data.owners is None or "clients" in objects:
            raise ConfigError(
                f"budgets names {', '.join(named)}: names need owners= beside data=, and no clients=; "
                "else give one number for each group"
            )
        owners = made.data.owner_names or [str(number) for number in range(int(made.data.owners.max()) + 1)]
        listed = ",".join(map(repr, budgets_in_order(owners, named)))
        words += [f"privacy.budgets={CLIENTS}", f"privacy.client_budgets=[{listed}]"]
    elif "budgets" in objects:
        words.append(f"privacy.budgets={budgets_value(budgets)}")
    if resumed is None:
        words += _usual_settings(made.data, settings, objects)
    made.words = [*words, *settings]
    return made


def _refuse_unknown(settings: Sequence[str], objects: Mapping[str, Any]) -> None:
    """Raise ConfigError for unknown arguments, repeated settings, or `owners` or `columns` without `data`."""
    known = list(Objects.__annotations__)
    for each in settings:
        if not isinstance(each, str):
            raise ConfigError(
                f"a {type(each).__name__} is given without a name: settings are texts, as in "
                f'"privacy.clipping_norm=0.5", and objects go by name, as in data=...: {", ".join(known)}'
            )
    for name in objects:
        if name not in known:
            raise ConfigError(
                f"{not_known(f'argument {name!r}', known)}, and settings as texts, "
                'as in "privacy.clipping_norm=0.5"'
            )
    for name in ("owners", "columns"):
        if name in objects and "data" not in objects:
            raise ConfigError(f"{name}= is about data=, which is not given: give it, or leave out {name}=")
    said = {setting.partition("=")[0]: setting for setting in settings}
    for name, key in KEYS.items():
        if name in objects and key in said:
            raise ConfigError(f"{name}= and {said[key]!r} are both given: leave one out")


def _usual_settings(data: "Dataset | None", settings: Sequence[str], objects: Mapping[str, Any]) -> list[str]:
    """Derive from the data those settings that the user did not give, such as number of clients and loss.

    Raises ConfigError: data that are nobody's, of which nobody says how they are shared out.
    """
    said, words = {setting.partition("=")[0] for setting in settings}, []
    count = objects.get("clients") or given_value(settings, "dataset.num_clients")
    shared_out = objects.get("partition") or given_value(settings, "dataset.partition")
    if data is not None and data.owners is not None and shared_out in (None, "natural"):
        words += ["dataset.partition=natural"] if shared_out is None else []
        if count is None:
            count = len(data.owner_names) or int(data.owners.max()) + 1
            words.append(f"{KEYS['clients']}={count}")
    if data is not None and count is None:
        raise ConfigError(
            "data= does not say which client has which example: give owners=, a name or a number for each "
            "training example, or clients=, the number of clients that share them"
        )
    rated = {"dataset", "privacy.sampling_rate", "dataset.sampling_rate"} & said
    if hasattr(count, "__index__") and count > 0 and not rated:
        words.append(f"privacy.sampling_rate={min(1.0, max(USUAL_RATE, FEWEST_A_ROUND / count)):.4g}")
    if data is not None and not {"loss", "dataset.loss"} & {*objects, *said}:
        words.append(f"dataset.loss={data.labels.loss}")
    if "columns" in objects:
        # Settings whose defaults differ between tables and arrays.
        tables, others = (compose_options([f"dataset={name}"]).dataset for name in ("csv", DATASET))
        taken = {*said, *(KEYS.get(name, name) for name in objects)}
        words += [
            f"dataset.{key}={tables[key]}"
            for key in tables
            if key in STARTS and others[key] != tables[key] and f"dataset.{key}" not in taken
        ]
    return words


def budgets_value(budgets: Any) -> str:
    """Return the value of `privacy.budgets` for numbers, one a group, or for the word "clients".

    Raises ConfigError: others than numbers above 0.
    """
    plain = budgets.tolist() if hasattr(budgets, "tolist") else budgets
    if plain == CLIENTS:
        return CLIENTS
    numbers = plain if isinstance(plain, list | tuple) else [plain]
    return f"[{','.join(repr(_number(number, 'budgets')) for number in numbers)}]"


def _number(value: Any, place: str) -> float:
    if isinstance(value, bool | str) or not hasattr(value, "__float__"):
        raise ConfigError(
            f"{place} holds {value!r}: give numbers above 0, one for each group, or for each owner by name"
        )
    number = float(value)
    if not 0 < number < float("inf"):
        raise ConfigError(f"{place} holds {number:g}: an epsilon is above 0 and finite")
    return number
