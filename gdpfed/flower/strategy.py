"""GDPFed: a Flower strategy that trains your own model under a privacy plan."""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from logging import INFO, WARNING
from math import isfinite
from numbers import Real
from typing import NoReturn

from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common.logger import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Result, Strategy

from conf.load import given_value
from conf.schema import CLIENTS, Config
from gdpfed.clients.messages import one_line
from gdpfed.errors import ConfigError, InputError, LearningError, PrivacyError, RunError
from gdpfed.flower.arrays import DATASET, Layout, place_start, tied
from gdpfed.learning.training.evaluate import Evaluation
from gdpfed.methods import METHODS, methods_with
from gdpfed.methods.base import Theta
from gdpfed.python_objects.objects import budgets_value
from gdpfed.rounds.extensions.base import Extension
from gdpfed.rounds.observers import RoundEnded, RunOpened
from gdpfed.rounds.run import OpenRun
from gdpfed.runs.paths import check_paths
from gdpfed.runs.resume import load_run
from server_app.train import train

EvaluateFn = Callable[[int, ArrayRecord], MetricRecord | None]


class GDPFed(Strategy):
    """A Flower strategy that trains an app's own arrays, with a privacy budget for each client::

        strategy = GDPFed(budgets=[1.0, 3.0], num_clients=100)
        result = strategy.start(grid=grid, initial_arrays=arrays, num_rounds=20)

    The ClientApp is to be ``private_client(app)``. Plan, terms, ledger, secure sums and the run's files are
    those of ``gdpfed run``, under which a run is audited, shown and resumed. A client is a node, by the
    ``partition-id`` of its node: budgets and groups follow that number, and never the order of node ids.

    Args:
        settings: any of ``gdpfed settings``, as in ``"privacy.clipping_norm=0.5"``, ``"run.directory=DIR"``,
            ``"run.resume=DIR"``.
        budgets: epsilon of each group of equal size, in the order of client numbers; None or "clients": each
            node says its own.
        num_clients: N, clients from 0 to N - 1. It, budgets and method may be left out of a run that goes
            on (``run.resume``), which has them already.
        num_rounds: of the plan; None leaves it to `start`.
        method: whose work is a whole update, such as gdpfed_star, gdpfed or fedavg; None is gdpfed_plus.
        against: whom epsilon holds against, as ``privacy.against``; None for what the method usually has.

    Raises ConfigError: a setting that is not a text, budgets other than numbers, or one, or no num_clients.
    """

    def __init__(
        self,
        *settings: str,
        budgets: Sequence[float] | str | None = None,
        num_clients: int | None = None,
        num_rounds: int | None = None,
        method: str | None = None,
        against: str | None = None,
    ) -> None:
        if wrong := [setting for setting in settings if not isinstance(setting, str)]:
            raise ConfigError(f"GDPFed({wrong[0]!r}): settings are texts, as in 'privacy.clipping_norm=0.5'")
        if isinstance(budgets, int | float):
            raise ConfigError(f"budgets={budgets} is one number: give one for each group, as in [{budgets}]")
        if num_clients is None and not _have(settings, "dataset.num_clients"):
            raise ConfigError(
                "num_clients is not given: say how many clients there are, as in num_clients=100"
            )
        if budgets is None and not _have(settings, "privacy.budgets"):
            budgets = CLIENTS
        if method is None and not _have(settings, "method"):
            method = "gdpfed_plus"
        said = None if budgets is None else budgets_value(budgets)
        # Of a run that goes on, what nodes have said is written down as numbers.
        if said == CLIENTS and _have(settings, "run.resume"):
            said = None
        arguments = {"dataset.num_clients": num_clients, "method": method}
        arguments |= {"privacy.budgets": said, "privacy.against": against}
        self._settings = (
            f"dataset={DATASET}",
            *(f"{name}={value}" for name, value in arguments.items() if value is not None),
            *settings,
        )
        self._num_rounds = num_rounds

    def summary(self) -> None:
        """Log the settings from which the privacy plan is made."""
        log(INFO, "\t%s", " ".join(self._settings))

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float | None = None,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: EvaluateFn | None = None,
    ) -> Result:
        """Plan, let nodes accept the run's conditions, train, and return released arrays and evaluations.

        Args:
            grid: Flower's connection to the nodes.
            initial_arrays: of real numbers; theta holds them as float32.
            num_rounds: of the plan, unless the strategy has them.
            timeout: seconds that one exchange waits; by default run.timeout_seconds.
            train_config: what the clients' function is told, besides ``server-round``; None leaves it to the
                run that goes on.
            evaluate_config: none: what clients find on their own records would leave outside of a charge.
            evaluate_fn: evaluates the initial arrays of a new run, then those that every round releases, on
                what is public here; it must see nothing of the clients. Of its metrics
                `accuracy`, from 0 to 1, and `loss` are shown.

        Raises:
            InputError: before anything is charged, what cannot be used; RunError: as of any run, and of a
                subclass with its own single steps, which no run calls.
        """
        for step in _STEPS:
            if getattr(type(self), step) is not getattr(GDPFed, step):
                raise RunError(
                    f"{type(self).__name__} has its own {step}, which would never be called, since start() "
                    "does a whole training: leave it out, and write what the server does with sums as a "
                    "method (docs/extending.md)"
                )
        try:
            layout, config = self._configured(initial_arrays, num_rounds, timeout, train_config)
            if evaluate_config:
                raise ConfigError(
                    "evaluate_config is given, and no client evaluates, since that would be charged to no "
                    "budget: leave it out, and evaluate on public data by evaluate_fn"
                )
            self.summary()
            watch = _Watch(layout, evaluate_fn)
            if config.run.resume is None:
                watch.evaluate_first(initial_arrays)
            released = train(grid, config, str(grid.run.run_id), evaluate_model=watch.evaluate, more=[watch])
        except (InputError, RunError) as error:
            # Flower prints what leaves here with its traceback, which is noise to the user.
            raise type(error)(str(error)).with_traceback(None) from None
        watch.result.arrays = _record(layout, released)
        return watch.result

    def _configured(
        self,
        initial: ArrayRecord,
        num_rounds: int | None,
        timeout: float | None,
        told: ConfigRecord | None,
    ) -> tuple[Layout, Config]:
        """Return names, types and shapes of the app's arrays (layout), and the run's configuration."""
        said = {each for each in (num_rounds, self._num_rounds) if each is not None}
        if len(said) > 1:
            raise ConfigError(
                f"num_rounds={num_rounds} is given to start, and {self._num_rounds} to the strategy: give one"
            )
        in_settings = given_value(self._settings, "run.num_rounds")
        if said and in_settings not in (None, *said):
            raise ConfigError(
                f"num_rounds={said.pop()} and the setting run.num_rounds={in_settings} are given: give one"
            )
        if not said and not _have(self._settings, "run.num_rounds"):
            raise ConfigError(
                "num_rounds is given neither to start nor to the strategy, and a plan needs it: give it "
                "to one"
            )
        settings = [*self._settings, *(f"run.num_rounds={each}" for each in said)]
        if timeout is not None:
            settings.append(f"run.timeout_seconds={timeout}")
        check_paths(settings)
        config = load_run(settings)
        if not isinstance(initial, ArrayRecord):
            raise LearningError(
                f"initial_arrays is a {type(initial).__name__}: give an ArrayRecord, as in "
                "ArrayRecord(model.state_dict())"
            )
        arrays = {name: each.numpy() for name, each in initial.items()}
        if not sum(each.size for each in arrays.values()):
            raise LearningError("initial_arrays has no arrays with numbers: give those of your model")
        layout = Layout.of(arrays)
        if (pair := tied(arrays)) is not None:
            log(
                WARNING,
                "arrays '%s' and '%s' begin with the same values: if your model ties them, leave one out of "
                "the arrays, since each gets noise of its own",
                *pair,
            )
        try:
            begun = told is None and config.run.resume is not None and config.dataset.model_options
            words = str(begun["told"]) if begun else json.dumps(dict(told or {}), allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ConfigError(
                f"train_config cannot be written as JSON ({error}): give numbers and text"
            ) from None
        start = place_start(layout, arrays)
        config.dataset.model_options = {"layout": layout.to_json(), "start": start, "told": words}
        config.validate()
        _refuse_other_work(config)
        return layout, config

    def initialize_parameters(self, client_manager: object) -> NoReturn:
        """Raise RunError: the older ServerApp of a ``server_fn`` calls this, and never calls `start`."""
        raise RunError(
            "GDPFed does not go with ServerApp(server_fn): make a ServerApp(), and call strategy.start(grid="
            "grid, ...) in its @app.main()"
        )

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Raise RunError: a round needs several exchanges, so it cannot be run by this single call."""
        _refuse_steps()

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Raise RunError, as `configure_train` does: single steps are not supported."""
        _refuse_steps()

    def configure_evaluate(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Raise RunError, as `configure_train` does: single steps are not supported."""
        _refuse_steps()

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Raise RunError, as `configure_train` does: single steps are not supported."""
        _refuse_steps()


_STEPS = ("configure_train", "aggregate_train", "configure_evaluate", "aggregate_evaluate")
"""What Flower's own strategies do one after the other in a round."""


def _have(settings: Sequence[str], name: str) -> bool:
    """Whether settings give ``name`` a value, or resume an earlier run, which has a value for it."""
    return any(setting.startswith((f"{name}=", "run.resume=")) for setting in settings)


def _refuse_steps() -> NoReturn:
    raise RunError(
        "GDPFed does a whole training in start(), and has no single steps: do not wrap it in another "
        "strategy; it already brings privacy and secure aggregation"
    )


def _refuse_other_work(config: Config) -> None:
    """Raise an error for methods and settings that need more from clients than the updates of an app."""
    if config.privacy.unit != "client":
        raise PrivacyError(
            f"privacy.unit={config.privacy.unit} needs the gradient of every record, and an app's own "
            "function answers with a whole update: use privacy.unit=client"
        )
    if config.privacy.sampling in ("fixed_size", "allocation"):
        raise PrivacyError(
            f"privacy.sampling={config.privacy.sampling} is not proved for clients that keep something "
            "between rounds, as an app's own train function may: use privacy.sampling=poisson"
        )
    if not {"client state", "turns"}.intersection(METHODS.get(config.method.name).goes_with):
        able = methods_with("client state", "turns")
        raise ConfigError(
            f"method={config.method.name} needs more of a client than a whole update, and an app's own "
            f"train function answers with nothing else: use {able}"
        )
    asked = {
        "run.evaluation": (config.run.evaluation, "server"),
        "training.vote": (config.training.vote, None),
        "privacy.norm_histogram_share": (config.privacy.norm_histogram_share, None),
        "training.client_state": (config.training.client_state, None),
        "training.local_parameters": (config.training.local_parameters, None),
        "dataset.name": (config.dataset.name, DATASET),
    }
    for name, (value, only) in asked.items():
        if value != only:
            raise ConfigError(
                f"{name}={value} only works with gdpfed's own models and data, not with an app's own train "
                f"function: leave it at {'null' if only is None else only}"
            )


def _record(layout: Layout, theta: Theta) -> ArrayRecord:
    return ArrayRecord({name: Array(each) for name, each in layout.arrays_of(theta).items()})


@dataclass
class _Watch(Extension):
    """Evaluates every round's released model with the app's own function, and keeps the results."""

    key = "flower"

    layout: Layout
    evaluate_fn: EvaluateFn | None
    result: Result = field(default_factory=Result)
    _round: int = 0

    def opened(self, run: RunOpened) -> None:
        """Remember how many rounds are complete."""
        self._round = run.completed_rounds

    def evaluate_first(self, initial: ArrayRecord) -> None:
        """Evaluate the initial arrays of a new run, before any node is asked.

        Raises ConfigError: the function returns what cannot be an evaluation, or a loss that is not finite.
        """
        found = self._evaluated(initial)
        loss = found.loss
        if loss is not None and not isfinite(loss):
            raise ConfigError(f"evaluate_fn returned loss={loss} of the initial arrays: begin with others")
        if found == Evaluation(None, None) and (named := self.result.evaluate_metrics_serverapp.get(0)):
            log(
                WARNING,
                "evaluate_fn returned %s: of its metrics a round shows accuracy, from 0 to 1, and loss, by "
                "these names alone",
                ", ".join(one_line(name) for name in named),
            )

    def evaluate(self, theta: Theta) -> Evaluation:
        """Return the accuracy and loss of a round's model, computed by the app's evaluation function."""
        self._round += 1
        return self._evaluated(_record(self.layout, theta))

    def round_ended(self, ended: RoundEnded) -> None:
        """Remember the number of the round that has ended."""
        self._round = ended.record.round

    def after_rounds(self, run: OpenRun) -> None:
        """Go back one round, so that the evaluation of the finally chosen model replaces the last one."""
        self._round = run.loop.state.completed_rounds - 1

    def _evaluated(self, arrays: ArrayRecord) -> Evaluation:
        """Call the app's function and keep its result; raise ConfigError if it is not a valid evaluation."""
        found = self.evaluate_fn(self._round, arrays) if self.evaluate_fn else None
        if found is None:
            return Evaluation(None, None)
        if not isinstance(found, Mapping):
            raise ConfigError(
                f"evaluate_fn returned a {type(found).__name__}: return a MetricRecord, as in "
                'MetricRecord({"accuracy": 0.85, "loss": 0.4})'
            )
        figures: list[float | None] = []
        for name in ("accuracy", "loss"):
            value: object = found.get(name)
            if value is not None and (not isinstance(value, Real) or isinstance(value, bool)):
                raise ConfigError(
                    f"evaluate_fn returned {name}={one_line(repr(value))}: return a number, as in 0.85"
                )
            figures.append(None if value is None else float(value))
        accuracy, loss = figures
        if accuracy is not None and not 0 <= accuracy <= 1:
            raise ConfigError(
                f"evaluate_fn returned accuracy={accuracy}: return a share from 0 to 1, as in 0.85"
            )
        self.result.evaluate_metrics_serverapp[self._round] = found
        return Evaluation(accuracy, loss)
