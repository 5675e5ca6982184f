"""What a node compares with its own limits and data before it joins a run."""

from collections.abc import Callable, Mapping
from functools import partial
from logging import ERROR
from typing import Any

import numpy as np

from gdpfed.clients.messages import (
    BY_PARTY,
    CLIENTS,
    COLUMNS,
    INPUT_DTYPE,
    INPUT_SHAPE,
    LABEL_DTYPE,
    LABEL_SHAPE,
    UNIT,
    WEIGHTS,
)
from gdpfed.errors import LearningError
from gdpfed.federation import log
from gdpfed.federation.node.node_config import DATA_KEY, NodeConfigError
from gdpfed.federation.node.node_settings import NodeSettings
from gdpfed.learning.data.dataset import Split
from gdpfed.learning.data.own import INPUT_DTYPES, LABEL_DTYPES, OwnData, held_out_rows, own_arrays, read_own
from gdpfed.learning.data.persons import refuse_shared
from gdpfed.learning.data.table_file import is_table
from gdpfed.learning.data.tabular import own_columns
from gdpfed.privacy.events import Unit


class DataRefusedError(NodeConfigError):
    """A run that the node's own examples do not fit; its text tells of the data no more than that."""


def check_limits(settings: NodeSettings, question: Mapping[str, Any]) -> None:
    """Refuse to join a run whose largest sum is too small for this node, before it charges in vain.

    Raises:
        NodeConfigError: the run has fewer clients than this node's smallest sum, shows counts of its own, or
            is built on weights that this node has not.
    """
    if WEIGHTS in question:
        settings.check_weights(str(question[WEIGHTS]))
    if question.get(BY_PARTY):
        settings.check_by_party()
    least, clients = settings.policy.minimum_cohort, question.get(CLIENTS)
    if type(clients) is int and clients < least:
        raise NodeConfigError(
            f"minimum-cohort is {least}, and this run has {clients} clients: no sum would be large enough"
        )


def unit_in(question: Mapping[str, Any]) -> Unit:
    """Whose presence the run protects that a node is asked to join."""
    return "record" if question.get(UNIT) == "record" else "client"


def own_records(settings: NodeSettings, question: Mapping[str, Any]) -> int | None:
    """Return how many records the node brings to a run that protects records; None if it brings none itself.

    It refuses to join with examples that the run cannot be trained on; why is in the node's log alone.

    The server says the shapes and the kinds of an input and of a label, and what names the declaration of its
    table, which this node's own is compared with. It cannot ask which labels there are: by asking with
    one number of classes after another it would learn of the data.

    Raises:
        DataRefusedError: without anything that might tell of the data, or that there is none for a run that
            protects records, whose number is public.
    """
    own = settings.data
    if own is None:
        return None
    path, about_records = own.path, unit_in(question) == "record"
    shape, dtype = question.get(INPUT_SHAPE), question.get(INPUT_DTYPE)
    label_shape = question.get(LABEL_SHAPE) or []
    try:
        if isinstance(shape, list) and isinstance(label_shape, list) and dtype in INPUT_DTYPES:
            label_dtype, columns = question.get(LABEL_DTYPE), question.get(COLUMNS)
            if label_dtype not in LABEL_DTYPES:
                label_dtype = LABEL_DTYPES[0]
            kinds: dict[str, Any] = {"input_dtype": str(dtype), "label_dtype": str(label_dtype)}
            kinds["columns"] = str(columns or "") or None
            of_input, of_label = ([int(each) for each in sizes] for sizes in (shape, label_shape))
            arrays = partial(own_arrays, input_shape=of_input, label_shape=of_label, **kinds)
            records = _num_trained(own, arrays, by_person=about_records)
        else:
            labels = read_own(path)[1]
            records = 0 if labels is None else len(labels)
    except LearningError as error:
        log(ERROR, "%s", error)
        raise DataRefusedError(f"{DATA_KEY} cannot be used, see the log of this client") from None
    if not about_records:
        return None
    if not records:
        raise DataRefusedError(
            f"{DATA_KEY} is without records, and this run protects records: bring at least one, or stay away"
        )
    return records


def _num_trained(own: OwnData, arrays: Callable[..., Split], *, by_person: bool) -> int:
    """How many examples are trained on, or `by_person` how many persons, where rows name theirs.

    Raises:
        LearningError: as in `own_arrays`, and for persons of whom some rows are held out and others not.
    """
    every = arrays(own.path)
    trained = every.take(np.flatnonzero(~held_out_rows(every, own.held_out_share)))
    elsewhere = own.held_out_path
    if elsewhere is None and is_table(own.path) and own_columns(own.path).test is not None:
        elsewhere = own.path
    if elsewhere is not None:
        tested = arrays(elsewhere, for_testing=True)
        refuse_shared(trained, tested, f"{DATA_KEY}={own.path}")
    return len(trained if trained.persons is None or not by_person else np.unique(trained.persons))
