"""Says in one line what the code of a package raised while simulated clients trained."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from gdpfed.clients.order import TrainingOrder
from gdpfed.errors import GDPFedError, RunError, kind_and_words
from gdpfed.learning.labels import LOSSES
from gdpfed.learning.models import MODELS
from gdpfed.learning.training.optimizers import OPTIMIZERS
from gdpfed.registry import is_ours


@contextmanager
def packages_named(orders: Sequence[TrainingOrder]) -> Iterator[None]:
    """Run a ``with`` block that trains; raise RunError for an error where a package has a part in it.

    The line names the model, loss or optimizer of packages, and the first round in which it failed. An error
    without any of them is a fault of this project, and passes as it is.
    """
    try:
        yield
    except GDPFedError:
        raise
    except Exception as error:  # A package's code may raise anything.
        given = dict.fromkeys(name for order in orders for name in _of_packages(order))
        if not given:
            raise
        raise RunError(
            f"training in round {orders[0].round_index + 1} raised {kind_and_words(error)}: look for the "
            f"fault in {' and '.join(given)}, and install the package again; the round is charged"
        ) from error


def _of_packages(order: TrainingOrder) -> Iterator[str]:
    """Yield the settings of an order that name what a package or a Python program registered."""
    if not is_ours(MODELS.get(order.task.model)):
        yield f"dataset.model={order.task.model}"
    if not is_ours(LOSSES.get(order.task.loss)):
        yield f"dataset.loss={order.task.loss}"
    if not order.training.is_sgd and not is_ours(OPTIMIZERS.get(order.training.optimizer)):
        yield f"training.optimizer={order.training.optimizer}"
