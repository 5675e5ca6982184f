"""An extension is an option of a run that no round needs: one file, and one object in the run's list.

The moments of an extension, in the order in which a run comes to them:

| when | what is called |
|---|---|
| before anything is written | `largest`, `check` |
| the files are there | `opened_run`, once a process |
| before the first round of a process | `before_rounds` |
| a round begins | `start`, `replaces` |
| the cohorts are drawn | `drawn`, of the project's own alone |
| the method asks for sums | `asked`; once they are charged `requested`, `sums_ended`, `taken` |
| the round has made its step | `stepped`, `released`, `evaluated`, `record` |
| the checkpoint is on the disk | `state_dict` before it, `saved` after it |
| after the last round of a process | `after_rounds` |
| the run is over | `finished` |

An extension is an `Observer` too, so it is told of the other moments as observers are. None of this can have
anything summed that the ledger has not charged: what `asked` returns is checked against the plan and charged
afterwards, a fleet takes charged sums alone, and `OpenRun.sum_once` charges before it asks anybody. An
extension is code of the server's all the same: it sees what the server sees.
"""

from abc import ABC
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, overload

import numpy as np
import numpy.typing as npt

from gdpfed.clients.order import TrainingOrder
from gdpfed.methods.base import ClientSum, Cohorts, SumRequest, SumUpdates, Theta
from gdpfed.rounds.observers import Observer, RoundEnded

if TYPE_CHECKING:
    from gdpfed.clients.kept_states import KeptStates
    from gdpfed.rounds.fleet import Fleet
    from gdpfed.rounds.noise_streams import SumNoise
    from gdpfed.rounds.prepared import PreparedSum
    from gdpfed.rounds.run import OpenRun, PreparedRun
    from secagg import SumParameters

State = dict[str, npt.NDArray[np.generic]]


class RoundLeftOut(Exception):  # noqa: N818 - the state is the news, not the error
    """Nobody takes part in the round that begins; the text says why, and the round's log entry holds it."""


class Extension(Observer, ABC):
    """An option of a run; each method does nothing unless a subclass overrides it.

    A run that is stopped after round 5 if a public test set says so::

        class StopAfterFive(Extension):
            key = "stop_after_five"

            def start(self, order, theta):
                if order.round_index == 5:
                    raise TrainingOver("five rounds are enough")
                return theta

    Attributes:
        key: the names of its arrays in the checkpoint begin with it and a dot.
    """

    key: ClassVar[str]

    def largest(self, run: "PreparedRun") -> list[SumRequest]:
        """Return requests besides those of the method, over the largest cohorts, to be checked first."""
        return []

    def check(self, run: "PreparedRun", fleet: "Fleet", requests: Sequence[SumRequest]) -> None:
        """Refuse a run that is not possible, before anything is written.

        ``requests`` are those of the method over its largest cohorts. Raises InputError.
        """

    def opened_run(self, run: "OpenRun") -> None:
        """Begin or continue: the run's files exist, and state of an earlier process is restored."""

    def before_rounds(self, run: "OpenRun") -> None:
        """Do what comes before the first round of this process."""

    def start(self, order: TrainingOrder, theta: Theta) -> Theta:
        """Return the model that a round starts from, shape (d,).

        ``theta`` is the model that the round before has left. Nothing is charged yet, so it may wait. Raises
        RoundLeftOut to go on with the next round, TrainingOver to end the training before this one.
        """
        return theta

    def replaces(self, round_index: int) -> bool:
        """Say whether clients do something else than the method in a round, from 0; see `round`."""
        return False

    def round(self, theta: Theta, round_index: int, cohorts: Cohorts, sum_updates: SumUpdates) -> None:
        """Do a round in place of the method's round; the model does not change."""

    def asked(self, order: TrainingOrder, requests: Sequence[SumRequest]) -> list[SumRequest]:
        """Return the requests that are really made. Also called for later rounds, so it stores nothing."""
        return list(requests)

    def requested(self, order: TrainingOrder, requests: Sequence[SumRequest]) -> None:
        """Note the charged requests, which are summed now."""

    def sums_ended(self, order: TrainingOrder, sums: Mapping[str, ClientSum]) -> None:
        """Note the results of sums that were requested together, by name."""

    def taken(self, order: TrainingOrder, sums: Sequence[ClientSum]) -> list[ClientSum]:
        """Return the sums as the method receives them, in the order of its requests."""
        return list(sums)

    def stepped(self, theta: Theta) -> None:
        """Receive a round's model as the method releases it; not called in a round that was replaced."""

    def released(self, theta: Theta) -> Theta:
        """Return the model that the run releases, computed only from released models; may be called twice."""
        return theta

    def evaluated(self, ended: RoundEnded) -> None:
        """Receive a round that is over and evaluated; nothing of it is on disk yet."""

    def record(self) -> dict[str, Any]:
        """Return fields of the round's entry in the log, by the names of `RoundLogEntry`."""
        return {}

    def saved(self) -> None:
        """The checkpoint of a round is on disk."""

    def after_rounds(self, run: "OpenRun") -> None:
        """Do what follows the last round of this process; observers have not been told yet."""

    def finished(self) -> None:
        """The run is over, and its files are written."""

    def state_dict(self) -> State:
        """Return what a resumed run needs, by names without `key`; empty by default."""
        return {}

    def load_state_dict(self, state: Mapping[str, npt.NDArray[Any]], completed_rounds: int) -> None:
        """Restore what `state_dict` returned. Raises ValueError: the state is not one of this run."""
        if state:
            raise ValueError(f"{self.key} keeps nothing, but got {', '.join(sorted(state))}")


@dataclass(frozen=True, eq=False)
class Beside:
    """What extensions have added to a sum beside the updates.

    Attributes:
        noise: of a stream of sums; None where it is independent of other sums.
        corrections: of masked sums of a stream: who takes back noise, and of which earlier rounds. It holds
            every member without an update, of whom no noise may be due.
        kept: by the clients of the sum between their rounds; None where they keep nothing.
    """

    noise: "SumNoise | None" = None
    corrections: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    kept: "KeptStates | None" = None

    @property
    def members(self) -> Collection[int]:
        """The clients that are asked beside those with an update, and those that take noise back."""
        return self.corrections.keys()

    def taken_back_by(self, members: Collection[int]) -> list[tuple[int, int]]:
        """Return which of some members take noise back, and of which rounds, as pairs."""
        pairs = self.corrections.items()
        return [(client, turn) for client, turns in pairs if client in members for turn in turns]


NOTHING_BESIDE = Beside()


class SumExtension(Extension):
    """An extension of this project, which may also add to a sum beside the updates.

    What it returns decides about noise, so `run.extensions` takes none from elsewhere.
    """

    def drawn(
        self, fleet: "Fleet", round_index: int, cohorts: Cohorts, present: Collection[int] | None
    ) -> Cohorts:
        """Return the cohorts that are asked in a round; only `present` can be reached, None for all."""
        return cohorts

    def sum_checked(
        self, fleet: "Fleet", request: SumRequest, round_index: int, parameters: "SumParameters"
    ) -> "SumParameters":
        """Return the largest parameters of a sum, which must fit the integers that are summed."""
        return parameters

    def sum_prepared(
        self, fleet: "Fleet", request: SumRequest, prepared: "PreparedSum", *, ahead: bool
    ) -> "PreparedSum":
        """Return a sum with what is added beside its updates; ``ahead`` if it is for the next round."""
        return prepared


class Extensions(Sequence[Extension]):
    """The extensions of a run, each called in order.

    `items`: no two of one `key`, none of which begins with another's and a dot.
    """

    def __init__(self, items: Sequence[Extension] = ()) -> None:
        self._items = tuple(items)
        self._of_sums = [item for item in self._items if isinstance(item, SumExtension)]

    @overload
    def __getitem__(self, index: int) -> Extension: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Extension]: ...
    def __getitem__(self, index: int | slice) -> Extension | Sequence[Extension]:
        return self._items[index]

    def __len__(self) -> int:
        return len(self._items)

    def tell(self, moment: Callable[..., None], *arguments: object) -> None:
        """Call a method without a result on each extension, as in ``tell(Extension.saved)``."""
        for each in self:
            getattr(each, moment.__name__)(*arguments)

    def largest(self, run: "PreparedRun") -> list[SumRequest]:
        """Return the requests of all extensions."""
        return [request for each in self for request in each.largest(run)]

    def start(self, order: TrainingOrder, theta: Theta) -> Theta:
        """Return the model that a round starts from, after all extensions."""
        for each in self:
            theta = each.start(order, theta)
        return theta

    def replacing(self, round_index: int) -> Extension | None:
        """Return the first extension that replaces this round; None if the method does the round."""
        return next((each for each in self if each.replaces(round_index)), None)

    def asked(self, order: TrainingOrder, requests: Sequence[SumRequest]) -> list[SumRequest]:
        """Return the requests after all extensions have changed them."""
        for each in self:
            requests = each.asked(order, requests)
        return list(requests)

    def drawn(
        self, fleet: "Fleet", round_index: int, cohorts: Cohorts, present: Collection[int] | None
    ) -> Cohorts:
        """Return the cohorts of a round after all extensions have changed them."""
        for of_sum in self._of_sums:
            cohorts = of_sum.drawn(fleet, round_index, cohorts, present)
        return cohorts

    def sum_checked(
        self, fleet: "Fleet", request: SumRequest, round_index: int, parameters: "SumParameters"
    ) -> "SumParameters":
        """Return the largest parameters of a sum with all extensions."""
        for of_sum in self._of_sums:
            parameters = of_sum.sum_checked(fleet, request, round_index, parameters)
        return parameters

    def sum_prepared(
        self, fleet: "Fleet", request: SumRequest, prepared: "PreparedSum", *, ahead: bool
    ) -> "PreparedSum":
        """Return the sum with what all extensions add to it."""
        for of_sum in self._of_sums:
            prepared = of_sum.sum_prepared(fleet, request, prepared, ahead=ahead)
        return prepared

    def taken(self, order: TrainingOrder, sums: Sequence[ClientSum]) -> list[ClientSum]:
        """Return the sums after all extensions, applied in reverse order."""
        for each in reversed(self):
            sums = each.taken(order, sums)
        return list(sums)

    def released(self, theta: Theta) -> Theta:
        """Return the released model after all extensions, one after the other."""
        for each in self:
            theta = each.released(theta)
        return theta

    def record(self) -> dict[str, Any]:
        """Return the log fields of all extensions."""
        return {name: value for each in self for name, value in each.record().items()}

    def state_dict(self) -> State:
        """Return the states of all extensions, each under its key."""
        return {f"{each.key}.{name}": value for each in self for name, value in each.state_dict().items()}

    def restore(self, state: Mapping[str, npt.NDArray[Any]], completed_rounds: int) -> State:
        """Restore each extension's state, and return the rest, which is the method's.

        Raises ValueError for a state that is not one of this run.
        """
        rest = dict(state)
        for each in self:
            prefix = f"{each.key}."
            own = {name: rest.pop(name) for name in list(rest) if name.startswith(prefix)}
            kept = {name.removeprefix(prefix): value for name, value in own.items()}
            each.load_state_dict(kept, completed_rounds)
        return rest


NO_EXTENSIONS = Extensions()
