"""What a node compares with its own limits and data before it joins a run."""

from collections.abc import Mapping
from logging import ERROR
from typing import Any

from gdpfed.clients.messages import CLIENTS, COLUMNS, INPUT_DTYPE, INPUT_SHAPE, LABEL_DTYPE, UNIT
from gdpfed.errors import LearningError
from gdpfed.federation import log
from gdpfed.federation.node.node_config import DATA_KEY, NodeConfigError
from gdpfed.federation.node.node_settings import NodeSettings
from gdpfed.learning.data.own import INPUT_DTYPES, LABEL_DTYPES, held_out_rows, own_arrays, read_own
from gdpfed.privacy.events import Unit


def check_limits(settings: NodeSettings, question: Mapping[str, Any]) -> None:
    """Refuse to join a run whose largest sum is too small for this node, before it charges in vain.

    Raises:
        NodeConfigError: the run has fewer clients than this node's smallest sum.
    """
    least, clients = settings.policy.minimum_cohort, question.get(CLIENTS)
    if type(clients) is int and clients < least:
        raise NodeConfigError(
            f"minimum-cohort is {least}, and this run has {clients} clients: no sum would be large enough"
        )


def unit_in(question: Mapping[str, Any]) -> Unit:
    """Whose presence the run protects that a node is asked to join."""
    return "record" if question.get(UNIT) == "record" else "client"


def own_records(settings: NodeSettings, question: Mapping[str, Any]) -> int | None:
    """Return how many examples the node brings itself; None where the data set's partition names them.

    It refuses to join with examples that the run cannot be trained on; why is in the node's log alone.

    The server says the shape and the kind of an input, the kind of a label, and what names the declaration of
    its table, which this node's own is compared with. It cannot ask which labels there are: by asking with
    one number of classes after another it would learn of the data.

    Raises:
        NodeConfigError: without anything that might tell of the data, or that there is none for a run that
            protects records, whose number is public.
    """
    own = settings.data
    if own is None:
        return None
    path = own.path
    shape, dtype = question.get(INPUT_SHAPE), question.get(INPUT_DTYPE)
    try:
        if isinstance(shape, list) and dtype in INPUT_DTYPES:
            label_dtype, columns = question.get(LABEL_DTYPE), question.get(COLUMNS)
            if label_dtype not in LABEL_DTYPES:
                label_dtype = LABEL_DTYPES[0]
            kinds = str(dtype), str(label_dtype), str(columns or "") or None
            every = own_arrays(path, [int(each) for each in shape], *kinds)
            records = len(every) - int(held_out_rows(every, own.held_out_share).sum())
            if own.held_out_path is not None:
                own_arrays(own.held_out_path, [int(each) for each in shape], *kinds, for_testing=True)
        else:
            records = len(read_own(path)[1])
    except LearningError as error:
        log(ERROR, "%s", error)
        raise NodeConfigError(f"{DATA_KEY} cannot be used, see the log of this client") from None
    if not records and unit_in(question) == "record":
        raise NodeConfigError(
            f"{DATA_KEY} is without records, and this run protects records: bring at least one, or stay away"
        )
    return records
