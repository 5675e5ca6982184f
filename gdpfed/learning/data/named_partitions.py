"""Named partitions of data among clients: each is a function that assigns examples to all clients.

Another package adds one as an entry point of the group ``gdpfed.partitions``, or for one process with
``PARTITIONS.register``: a function ``(data, num_clients, seed, **options) -> positions of every client``.
`flower_partition` makes one of a partitioner of flwr-datasets.
"""

from collections.abc import Callable, Sequence
from functools import lru_cache
from inspect import Parameter, signature
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError, kind_and_words, not_known
from gdpfed.files import read_regular
from gdpfed.learning.data import Dataset
from gdpfed.registry import OF_PYTHON, Registry

if TYPE_CHECKING:
    from flwr_datasets.partitioner import Partitioner

Positions = npt.NDArray[np.int64]
Options = tuple[tuple[str, float | str], ...]
Sharing = Callable[..., Sequence[Positions]]
PARTITIONS: Registry[Sharing] = Registry("partition", "gdpfed.partitions", error=LearningError)
OF_ONE_CLIENT = ("iid", "labels", "shards", "dirichlet", "natural")
"""Those that are computed for one client alone: `gdpfed.learning.data.client_partition`."""
BY_CLASS, BY_LABEL = ("dirichlet", "pathological"), ("labels", "shards")
"""Those that need a class of every example, and those that need a class or a number."""


@lru_cache(maxsize=2)
def shared_out(
    data: Dataset, name: str, num_clients: int, seed: int, options: Options
) -> Sequence[Positions]:
    """Divide the examples among clients by the partition with this name; return every client's positions.

    No example goes to two clients: a record would be accounted at one of them only.

    Raises LearningError: no such partition, options that it does not take, or positions that are none.
    """
    words = f"dataset.partition={name}"
    if name not in PARTITIONS.names() and not name.startswith(OF_PYTHON):
        raise LearningError(not_known(words, sorted([*OF_ONE_CLIENT, *PARTITIONS.names()])))
    share = PARTITIONS.get(name)
    _check_options(words, share, [option for option, _ in options])
    try:
        found = share(data, num_clients, seed, **dict(options))
        parts = [np.asarray(part, dtype=np.int64).reshape(-1) for part in found]
    except LearningError:
        raise
    except Exception as error:  # A package's partition may raise anything.
        raise LearningError(
            f"{words} with dataset.partition_options={dict(options)} cannot share out "
            f"{len(data.train)} examples ({kind_and_words(error)}): change its options, or the number "
            "of clients"
        ) from error
    if len(parts) != num_clients:
        raise LearningError(
            f"{words} makes {len(parts)} parts for dataset.num_clients={num_clients}: it must make "
            "one for each client"
        )
    given = np.concatenate(parts)
    if np.any((given < 0) | (given >= len(data.train))) or len(np.unique(given)) < len(given):
        raise LearningError(
            f"{words} gives an example to two clients, or one that does not exist: every position must be in "
            f"one part at most, from 0 to {len(data.train) - 1}"
        )
    return parts


def _check_options(words: str, share: Sharing, given: Sequence[str]) -> None:
    """Raise LearningError if a partition lacks an option that it needs, or does not take one."""
    try:
        parameters = [*signature(share).parameters.values()]
    except ValueError:
        # A function of C, say, does not tell.
        return
    # The first three are the data, the number of clients and the seed.
    named = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
    own = [each for each in parameters[3:] if each.kind in named]
    lacking = [each.name for each in own if each.default is each.empty and each.name not in given]
    if lacking:
        example = ", ".join(EXAMPLES.get(name, f"{name}: ...") for name in lacking)
        raise LearningError(
            f"{words} needs {' and '.join(lacking)}: set dataset.partition_options={{{example}}}"
        )
    if all(each.kind is not each.VAR_KEYWORD for each in parameters):
        for name in given:
            if name not in (known := [each.name for each in own]):
                raise LearningError(
                    not_known(f"dataset.partition_options: {name} of {words}", known)
                    if known
                    else f"{words} takes no dataset.partition_options, and {name} is given: leave it out"
                )


EXAMPLES = {"path": "path: owners.txt"}
"""Of options that our own partitions need."""


def flower_partition(make: Callable[..., "Partitioner"]) -> Sharing:
    """Make a partition from a partitioner of flwr-datasets.

    `make`: ``(num_clients, seed, **options) -> Partitioner``, whose column of labels is "label".
    """

    def share(data: Dataset, num_clients: int, seed: int, **options: Any) -> Sequence[Positions]:
        partitioner = make(num_clients, seed, **options)
        partitioner.dataset = labels_as_table(data)
        parts = map(partitioner.load_partition, range(num_clients))
        return [np.asarray(part["position"], dtype=np.int64) for part in parts]

    return share


def labels_as_table(data: Dataset) -> Any:
    """Return a table for flwr-datasets: each example's position and, unless labels are arrays, its label."""
    # Imported here, since it takes seconds and most partitions do without it.
    from datasets import Dataset as Table

    labels, positions = data.train.y, {"position": np.arange(len(data.train))}
    return Table.from_dict(positions if labels.ndim > 1 else {"label": labels} | positions)


def _skewed(name: str) -> Sharing:
    """Return the named partition: clients' numbers of examples grow linearly, by squares or exponentially."""

    def make(num_clients: int, seed: int) -> "Partitioner":
        from flwr_datasets import partitioner

        made: Partitioner = getattr(partitioner, name)(num_partitions=num_clients)
        return made

    return flower_partition(make)


def _pathological(data: Dataset, num_clients: int, seed: int, *, classes: float = 2) -> Sequence[Positions]:
    """Give each client a fixed number of classes, by flwr-datasets' partitioner."""
    most = len(np.unique(data.train.y))
    if classes not in range(1, most + 1):
        raise LearningError(
            f"dataset.partition_options={{classes: {classes}}} is how many classes a client has: choose a "
            f"whole number from 1 to {most}"
        )

    def make(num_clients: int, seed: int) -> "Partitioner":
        from flwr_datasets.partitioner import PathologicalPartitioner

        return PathologicalPartitioner(num_clients, "label", int(classes), "first-deterministic", seed=seed)

    return flower_partition(make)(data, num_clients, seed)


def owners_of_file(data: Dataset, num_clients: int, seed: int, *, path: str) -> Sequence[Positions]:
    """Partition by data owners: a text file names the owner of each training example, one a line."""
    owners = np.array(read_regular(Path(path).expanduser()).decode("utf-8").split("\n"))
    owners = owners[:-1] if len(owners) and not owners[-1] else owners
    if len(owners) != len(data.train):
        raise ValueError(f"{path} does not have one line for each example: write one for each")
    _, numbers = np.unique(owners, return_inverse=True)
    return [np.flatnonzero(numbers == client) for client in range(int(numbers.max(initial=-1)) + 1)]


PARTITIONS.register("exponential", _skewed("ExponentialPartitioner"))
PARTITIONS.register("linear", _skewed("LinearPartitioner"))
PARTITIONS.register("owners", owners_of_file)
PARTITIONS.register("pathological", _pathological)
PARTITIONS.register("square", _skewed("SquarePartitioner"))
