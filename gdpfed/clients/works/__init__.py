"""What a client may compute for a sum; each kind of computation (work) has one file in this folder.

A file has the name of its work, which is also the name in orders. Its function `work` returns the update for
a job, of shape (d,) in float64. The next steps are the same for all works (`gdpfed.clients.update`): the
update is weighted, clipped, rounded to a grid and masked. The file may define five more functions:

* ``check(order, theta, encoding, client_id)`` raises an error, before the charge, for an invalid order;
* ``check_grid(order, theta, encoding)`` raises an error, before the run, if the grid is too coarse for it;
* ``without_examples(job)`` returns the update if the examples cannot be used, where zeros would not do;
* ``model_dimension(order, dimension)`` returns the number of model parameters for so many coordinates;
* ``by_party(order, dimension)`` says whether the sum shows every client's numbers apart, which a node allows.
"""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from gdpfed.clients.noise import BitsOf, secret_bits
from gdpfed.clients.order import OrderError, TrainingOrder
from gdpfed.learning.data import Split
from gdpfed.learning.data.own import OwnData, own_held_out, own_split
from gdpfed.learning.data.text import following
from gdpfed.learning.task import choose_device
from gdpfed.record_steps import WORKS as TABLE
from gdpfed.registry import Registry
from secagg import Encoding

NO_FORM = "the server does not describe the examples, so own data cannot be used: run one version on both"


@dataclass(frozen=True, eq=False)
class Job:
    """What one client has to compute for one sum: the server's instruction, the model and the client's data.

    Attributes:
        order: the server's instruction for this client.
        theta: the model to start from, shape (d,).
        encoding: the sum's integer grid.
        client_id: the client's number.
        bits: makes the secret source of bits for a client's number, which draws its batches and own noise.
        own_data: the client's own examples, or where they lie; None for its part of the task's data set.
        added: a vector that is added to every gradient of an update, shape (d,); None for no such vector.
        records: the number of records that the client brings, for when its examples cannot be used.
        dealt: returns the order to carry out with the examples that were just read.
    """

    order: TrainingOrder
    theta: npt.NDArray[np.float32]
    encoding: Encoding
    client_id: int
    _: KW_ONLY
    bits: BitsOf = secret_bits
    own_data: OwnData | Split | None = None
    added: npt.NDArray[np.float32] | None = None
    records: int = 1
    dealt: Callable[[TrainingOrder], TrainingOrder] = lambda order: order

    @cached_property
    def device(self) -> torch.device:
        """The device to compute on, as the server's instruction names it."""
        return choose_device(self.order.device)

    def examples(self) -> Split:
        """Return the examples that the client trains on: its part of the data set, or its own data."""
        task, own_data = self.order.task, self.own_data
        if isinstance(own_data, Split):
            return own_data
        if own_data is None:
            return task.client_data(self.client_id)
        if task.form is None:
            raise OrderError(NO_FORM)
        own = own_split(own_data.path, task.form, own_data.held_out_share)
        own = following(own) if task.at_every_position else own
        last = max(1, len(task.record_shares)) - 1
        if own.groups is None:
            return own
        # A record of a group without a budget joins the strictest group: an error would tell of the data.
        return replace(own, groups=np.where((own.groups >= 0) & (own.groups <= last), own.groups, 0))

    def held_out(self) -> Split:
        """Return the records that the client never trains on; a `Split` as `own_data` has none of these."""
        task, own_data = self.order.task, self.own_data
        if isinstance(own_data, Split):
            return own_data.take(np.zeros(0, dtype=np.int64))
        if own_data is None:
            return task.held_out(self.client_id)
        if task.form is None:
            raise OrderError(NO_FORM)
        return own_held_out(own_data, task.form)


class WorkModule(Protocol):
    """What the module of each kind of client computation (work) must define: a function `work`."""

    @staticmethod
    def work(job: Job) -> torch.Tensor:
        """Return the client's update before weighting and clipping: shape (d,), float64."""


WORKS: Registry[WorkModule] = TABLE
"""The files of works, each imported when its work is first used."""


def function_of(work: str, name: str) -> Any:
    """Return an optional function for one kind of client computation (work), or None if it is not defined."""
    return getattr(WORKS.get(work), name, None)
