"""Computes a node's contribution to a sum, after checking the model and the server's instruction to train.

torch is imported only when a message orders training: in a deployment each message starts a new process, and
loading torch takes longer than the answer to any other message.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from logging import ERROR
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import numpy.typing as npt

from conf.limits import MOST_BATCH, MOST_STEPS
from fastgrad import ENDS
from gdpfed.clients.keyed_noise import KeyedNoise
from gdpfed.clients.messages import ORDER_RECORD, THETA_RECORD, one_line
from gdpfed.errors import LearningError
from gdpfed.federation import log
from gdpfed.federation.node.stand_ins import StandIn, StandInError, Vector
from gdpfed.late_import import loaded_for_good
from secagg import ClientSession, Encoding, SumParameters

# Without limits, a server could keep this node busy for as long as it likes. A run's configuration is checked
# for the same limits, so that no run begins whose orders all nodes would refuse.
MOST = {"local_steps": MOST_STEPS, "batch_size": MOST_BATCH}

if TYPE_CHECKING:
    import torch

    from gdpfed.clients.order import TrainingOrder
    from gdpfed.learning.data.own import OwnData

Steps = TypeVar("Steps")


def checked_order(
    ordered: Mapping[str, Any] | None, theta: npt.NDArray[Any] | None, parameters: SumParameters
) -> tuple["TrainingOrder", Vector]:
    """Check the instruction to train and the model in a message, and return both as typed values.

    Raises OrderError: a record is missing, the model's size is wrong, or a number is outside its limits.
    """
    with loaded_for_good("torch"):
        from gdpfed.clients.order import OrderError, TrainingOrder
        from gdpfed.clients.order_checks import model_dimension

    if ordered is None or theta is None:
        raise OrderError(
            f"the message lacks the record {ORDER_RECORD} or {THETA_RECORD}: run one version on "
            "server and nodes"
        )
    order = TrainingOrder.from_scalars(dict(ordered))
    dimension = model_dimension(order, parameters.dimension)
    if theta.dtype != np.float32 or theta.shape != (dimension,):
        raise OrderError(
            f"the model is {theta.dtype}{list(theta.shape)}, not float32[{dimension}]: run one "
            "version on server and nodes"
        )
    asked = {name: (getattr(order.training, name), most) for name, most in MOST.items()}
    records = order.records
    if records is not None:
        asked["number of steps on records"] = (records.num_steps, MOST["local_steps"])
        asked["number of batch rates"] = (len(records.batch_rates), MOST["local_steps"])
    for name, (value, most) in asked.items():
        if type(value) is not int or not 1 <= value <= most:
            raise OrderError(f"the server's {name} is {value!r}: it must be from 1 to {most}")
    order.check_work(dimension)
    if order.task.form is not None and order.task.dimension != dimension:
        raise OrderError(
            f"the server's model {order.task.model} has {order.task.dimension} parameters, not "
            f"{dimension}: run one version on server and nodes"
        )
    return order, theta


@dataclass(frozen=True)
class Contributor:
    """A client that contributes to a secure sum, and where its examples come from.

    Attributes:
        client_id: its number.
        run: the name by which clients know the server's run.
        own_data: where its own examples lie; None for its part of the task's data set.
        stand_in: gives the update in its place: an edge server or an app's train function; None if it trains.
        unusable: receives the error if its examples cannot be used; only the node's operator sees it.
        records: the number of records that it brings, as it said when it joined.
        dealt: returns the order to carry out with the examples that were read.
    """

    client_id: int
    run: str
    own_data: "OwnData | None" = None
    stand_in: StandIn | None = None
    unusable: Callable[[BaseException], None] = lambda error: None
    records: int = 1
    dealt: "Callable[[TrainingOrder], TrainingOrder]" = lambda order: order

    def check(self, order: "TrainingOrder", theta: Vector, encoding: Encoding) -> None:
        """Raise an error for an instruction to train that cannot be carried out, before any cost is recorded.

        Raises InputError: as in `check_order` and `check_source`, or a stand-in cannot do the work.
        """
        from gdpfed.clients.order_checks import check_order, check_source

        if self.stand_in is None:
            check_source(order, self.own_data)
        elif order.work != "update":
            raise StandInError(
                f"{order.work} is asked of an edge or an app's own train function, which only answers with "
                "its model's change: leave out the setting that asks for it"
            )
        else:
            self.stand_in.check(order)
        check_order(order, theta, encoding, self.client_id, trains_here=self.stand_in is None)

    def steps(self, order: "TrainingOrder", theta: Vector, encoding: Encoding) -> npt.NDArray[np.int64]:
        """Compute the client's contribution to a secure sum, rounded to integer steps of a grid, shape (d,).

        Raises StandInError: as in :meth:`sent`.
        """
        from gdpfed.clients.update import contribution_steps, filling_steps

        return self.sent(order, theta, encoding, contribution_steps, filling_steps)

    def sent(
        self,
        order: "TrainingOrder",
        theta: Vector,
        encoding: Encoding,
        steps_of: "Callable[[TrainingOrder, torch.Tensor, Encoding], Steps]",
        filling: Callable[[Encoding], Steps],
    ) -> Steps:
        """Return the client's encoded update, or zeros (`filling`) if it was not sampled but must contribute.

        The round is charged already, and the server sees whether the client answers. So an error that depends
        on the examples is not raised: the client sends zeros, under the same noise as any update.

        Raises StandInError: the stand-in gave no update, as when devices are away, which no data decide.
        """
        import torch

        from gdpfed.clients.update import update_of, update_without_examples
        from gdpfed.clients.works import Job

        if order.fills:
            return filling(encoding)
        data, dealt = self.own_data, self.dealt
        job = Job(order, theta, encoding, self.client_id, own_data=data, records=self.records, dealt=dealt)
        try:
            if self.stand_in is None:
                update = update_of(job)
            else:
                update = torch.from_numpy(self.stand_in.change(self.run, order, theta)).double()
            if not update.isfinite().all():
                raise LearningError("the update holds NaN or infinity: train with a smaller learning rate")
            return steps_of(order, update, encoding)
        except (StandInError, *ENDS):
            raise
        except BaseException as error:
            log(ERROR, "%s: zeros are sent in place of this client's own update", one_line(error))
            self.unusable(error)
            return steps_of(order, update_without_examples(job), encoding)


def masked_update(
    order: "TrainingOrder",
    theta: Vector,
    session: ClientSession,
    num_contributors: int,
    who: Contributor,
    share: KeyedNoise,
    taken_back: Sequence[KeyedNoise],
) -> bytes:
    """Train, and return the masked vector: the update plus new noise minus parts of earlier noise."""
    from gdpfed.clients.noise import own_noise
    from gdpfed.learning.task import choose_device

    if (device := choose_device(order.device)).type == "cuda":
        from gdpfed.federation.node.on_device import device_part

        if part := device_part(device, session):
            return part.masked_update(order, theta, who, share, taken_back)
    steps = who.steps(order, theta, session.encoding())
    noise = own_noise(order, session.parameters, num_contributors, share, taken_back)
    return session.mask(steps, order.context(theta), noise=noise)


def masked_correction(session: ClientSession, context: bytes, taken_back: Sequence[KeyedNoise]) -> bytes:
    """Return the masked vector of a member that sends no update and only subtracts earlier noise."""
    with loaded_for_good("torch"):
        from gdpfed.clients.noise import keyed_steps
        from gdpfed.learning.task import choose_device

    steps = keyed_steps(session.encoding(), [], taken_back, choose_device("auto"))
    return session.mask(steps, context)


def update_in_clear(
    order: "TrainingOrder", theta: Vector, parameters: SumParameters, who: Contributor
) -> npt.NDArray[np.uint32]:
    """Return a client's update without noise, as unsigned integers of shape (d,), for sums without masks."""
    encoding = parameters.encoding(parameters.num_clients)
    return encoding.to_residues(who.steps(order, theta, encoding))
