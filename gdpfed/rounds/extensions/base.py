"""Base class of extensions; each is an optional feature of a run, such as adaptive clipping.

The methods of an extension, in the order in which a run calls them:

| when | what is called |
|---|---|
| before anything is written | `asked`, `largest`, `check` |
| the run directory exists | `opened_run`, once in each process |
| before the first round of a process | `before_rounds` |
| a round begins | `start` |
| its cohorts are drawn | `drawn`, only in extensions of this project |
| its cost is recorded | `replaces`, and `round` if an extension replaces the method |
| the method asks for sums | `asked`; after they are charged `requested`, `sums_ended`, `taken` |
| the method has made its step | `record`, `stepped`, `released`, `evaluated` |
| the checkpoint is written | `state_dict` before it, `saved` after it |
| after the last round of a process | `after_rounds` |
| the run is over | `finished` |

An extension is an `Observer` too, and is told of a run's events as observers are. It cannot cause a sum that
the ledger has not charged: the requests that `asked` returns are checked against the plan and then charged, a
fleet accepts only charged sums, and `OpenRun.sum_once` charges before it asks clients. But an extension runs
on the server and sees what the server sees.
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
    """Raised by an extension to skip the round that begins; no client is asked, and the message is logged."""


class Extension(Observer, ABC):
    """An optional feature of a run; each method does nothing unless a subclass overrides it.

    An extension that ends the training after five rounds::

        class StopAfterFive(Extension):
            key = "stop_after_five"

            def start(self, order, theta):
                if order.round_index == 5:
                    raise TrainingOver("five rounds are enough")
                return theta

    Attributes:
        key: its prefix in the checkpoint: the names of its arrays begin with the key and a dot.
    """

    key: ClassVar[str]

    def largest(self, run: "PreparedRun") -> list[SumRequest]:
        """Return this extension's requests for sums over the largest possible cohorts, for early checks."""
        return []

    def check(self, run: "PreparedRun", fleet: "Fleet", requests: Sequence[SumRequest]) -> None:
        """Raise InputError if this extension cannot work in the run; called before anything is written.

        ``requests`` are those of the method and the extensions over the largest cohorts.
        """

    def opened_run(self, run: "OpenRun") -> None:
        """Called when the run's files exist and, in a resumed run, the earlier state is restored."""

    def before_rounds(self, run: "OpenRun") -> None:
        """Called before the first round of this process."""

    def start(self, order: TrainingOrder, theta: Theta) -> Theta:
        """Return the model from which a round starts, shape (d,).

        ``theta`` is the model after the previous round. The round is not charged yet: this method may wait.
        Raises RoundLeftOut to leave out the round, which is charged all the same, and TrainingOver to end the
        training before the round.
        """
        return theta

    def replaces(self, round_index: int) -> bool:
        """Whether this extension carries out a round, counted from 0, in place of the training method."""
        return False

    def round(self, theta: Theta, round_index: int, cohorts: Cohorts, sum_updates: SumUpdates) -> None:
        """Carry out a round that does not train, such as an evaluation; the model stays unchanged."""

    def asked(self, order: TrainingOrder, requests: Sequence[SumRequest]) -> list[SumRequest]:
        """Return requests for sums, changed if needed; store nothing, since they may be of the next round."""
        return list(requests)

    def requested(self, order: TrainingOrder, requests: Sequence[SumRequest]) -> None:
        """Called with the requests for the sums that begin now; their privacy cost is already recorded."""

    def sums_ended(self, order: TrainingOrder, sums: Mapping[str, ClientSum]) -> None:
        """Called when sums that ran together have ended, with their results by name."""

    def taken(self, order: TrainingOrder, sums: Sequence[ClientSum]) -> list[ClientSum]:
        """Receive finished sums; return those for the training method, in the order of its requests."""
        return list(sums)

    def stepped(self, theta: Theta) -> None:
        """Receive the model that a round releases; not called if an extension replaced the round."""

    def released(self, theta: Theta) -> Theta:
        """Return the run's final model, computed only from released models; may be called more than once."""
        return theta

    def evaluated(self, ended: RoundEnded) -> None:
        """Called when a round is over and evaluated, before its log entry and checkpoint are saved."""

    def record(self) -> dict[str, Any]:
        """Return fields for the round's log entry, by their names in `RoundLogEntry`."""
        return {}

    def saved(self) -> None:
        """Called when a round's checkpoint is on disk."""

    def after_rounds(self, run: "OpenRun") -> None:
        """Called after the last round of this process, before observers hear that the run is concluded."""

    def finished(self) -> None:
        """Called when the run is over and its files are written."""

    def state_dict(self) -> State:
        """Return the arrays that a resumed run needs from this extension; {} by default."""
        return {}

    def load_state_dict(self, state: Mapping[str, npt.NDArray[Any]], completed_rounds: int) -> None:
        """Restore what `state_dict` returned; raise ValueError for the state of another run."""
        if state:
            raise ValueError(
                f"{self.key} keeps nothing in a checkpoint, but found {', '.join(sorted(state))}"
            )


@dataclass(frozen=True, eq=False)
class Beside:
    """What extensions attach to a sum: correlated noise, earlier noise to subtract, stored client states.

    Attributes:
        noise: the correlated noise of the sum; None if its noise is independent of other sums.
        corrections: for masked sums with correlated noise, client id -> the earlier rounds whose noise the
            client takes back. Every member without an update has an entry, which may be empty.
        kept: the client states of the sum's clients; None if clients keep no state.
    """

    noise: "SumNoise | None" = None
    corrections: Mapping[int, tuple[int, ...]] = field(default_factory=dict)
    kept: "KeptStates | None" = None

    @property
    def members(self) -> Collection[int]:
        """The clients that are asked to subtract a part of their earlier noise in a sum."""
        return self.corrections.keys()

    def taken_back_by(self, members: Collection[int]) -> list[tuple[int, int]]:
        """Return pairs (client, past round) for those members that now subtract their noise of that round."""
        pairs = self.corrections.items()
        return [(client, turn) for client, turns in pairs if client in members for turn in turns]


NOTHING_BESIDE = Beside()


class SumExtension(Extension):
    """An extension that may also change the clients, the parameters and the noise of a sum.

    What it returns decides about noise. So `run.extensions` refuses such extensions from other packages.
    """

    def drawn(
        self, fleet: "Fleet", round_index: int, cohorts: Cohorts, present: Collection[int] | None
    ) -> Cohorts:
        """Return a round's cohorts, changed if needed; `present`: the reachable clients, None for all."""
        return cohorts

    def sum_checked(
        self, fleet: "Fleet", request: SumRequest, round_index: int, parameters: "SumParameters"
    ) -> "SumParameters":
        """Return the parameters of the largest possible sum, to check that integers can hold that sum."""
        return parameters

    def sum_prepared(
        self, fleet: "Fleet", request: SumRequest, prepared: "PreparedSum", *, ahead: bool
    ) -> "PreparedSum":
        """Return a prepared sum with this extension's changes; ``ahead``: the sum is for the next round."""
        return prepared


class Extensions(Sequence[Extension]):
    """All extensions of a run, called one after the other.

    `items`: the extensions. Their keys differ, and no key begins with another key and a dot.
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
        """Call the method `moment` of every extension, as in ``tell(Extension.saved)``; ignore results."""
        for each in self:
            getattr(each, moment.__name__)(*arguments)

    def largest(self, run: "PreparedRun") -> list[SumRequest]:
        """Return the requests of all extensions for sums over the largest possible cohorts."""
        return [request for each in self for request in each.largest(run)]

    def start(self, order: TrainingOrder, theta: Theta) -> Theta:
        """Return the model from which a round starts, after all extensions have changed it."""
        for each in self:
            theta = each.start(order, theta)
        return theta

    def replacing(self, round_index: int) -> Extension | None:
        """Return the first extension that replaces this round; None if the training method carries it out."""
        return next((each for each in self if each.replaces(round_index)), None)

    def asked(self, order: TrainingOrder, requests: Sequence[SumRequest]) -> list[SumRequest]:
        """Return the requests for sums after all extensions have changed them."""
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
        """Return the parameters of the largest possible sum, after all extensions have changed them."""
        for of_sum in self._of_sums:
            parameters = of_sum.sum_checked(fleet, request, round_index, parameters)
        return parameters

    def sum_prepared(
        self, fleet: "Fleet", request: SumRequest, prepared: "PreparedSum", *, ahead: bool
    ) -> "PreparedSum":
        """Return a sum's request, parameters and client settings after all extensions have changed them."""
        for of_sum in self._of_sums:
            prepared = of_sum.sum_prepared(fleet, request, prepared, ahead=ahead)
        return prepared

    def taken(self, order: TrainingOrder, sums: Sequence[ClientSum]) -> list[ClientSum]:
        """Pass the sums through all extensions, the last one first; return those for the training method."""
        for each in reversed(self):
            sums = each.taken(order, sums)
        return list(sums)

    def released(self, theta: Theta) -> Theta:
        """Return the released model after all extensions have changed it, one after the other."""
        for each in self:
            theta = each.released(theta)
        return theta

    def record(self) -> dict[str, Any]:
        """Return the log fields of all extensions together."""
        return {name: value for each in self for name, value in each.record().items()}

    def state_dict(self) -> State:
        """Return the states of all extensions in one mapping; names begin with the extension's key."""
        return {f"{each.key}.{name}": value for each in self for name, value in each.state_dict().items()}

    def restore(self, state: Mapping[str, npt.NDArray[Any]], completed_rounds: int) -> State:
        """Restore all extensions' states from a checkpoint; return the entries of the training method.

        Raises ValueError for the state of another run.
        """
        rest = dict(state)
        for each in self:
            prefix = f"{each.key}."
            own = {name: rest.pop(name) for name in list(rest) if name.startswith(prefix)}
            kept = {name.removeprefix(prefix): value for name, value in own.items()}
            each.load_state_dict(kept, completed_rounds)
        return rest


NO_EXTENSIONS = Extensions()
