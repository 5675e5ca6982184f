"""Checks before a node joins a run: whether the run keeps the node's limits, and fits the node's data."""

from collections.abc import Mapping, Sequence
from logging import ERROR, WARNING
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
    LOSS,
    MODEL,
    SOURCE,
    UNIT,
    WEIGHTS,
    one_line,
)
from gdpfed.errors import LearningError
from gdpfed.federation import log
from gdpfed.federation.node.allowed import (
    check_by_party,
    check_named_file,
    check_refused,
    check_weights,
    trains_on_a_part,
)
from gdpfed.federation.node.node_config import NodeConfigError
from gdpfed.federation.node.node_settings import NodeSettings
from gdpfed.learning.data.cut import Cut
from gdpfed.learning.data.dataset import Split
from gdpfed.learning.data.file_form import is_table
from gdpfed.learning.data.image_folder import own_not_read
from gdpfed.learning.data.own import OwnData, check_own
from gdpfed.learning.data.own_files import INPUT_DTYPES, LABEL_DTYPES, declares_pictures, taken_as
from gdpfed.learning.data.source import DataSource, load_dataset
from gdpfed.learning.data.tabular import own_columns
from gdpfed.learning.labels import LOSSES
from gdpfed.learning.models import MODELS
from gdpfed.privacy.events import Unit


class DataRefusedError(NodeConfigError):
    """Raised if the node's examples do not fit the run; the message must reveal nothing else about them."""


def check_limits(settings: NodeSettings, question: Mapping[str, Any]) -> None:
    """Raise NodeConfigError if the run breaks a limit of this node, such as the smallest sum that it accepts.

    Raises:
        NodeConfigError: the run has fewer clients than this node's smallest sum, shows counts of its own, is
            built on weights that this node has not, has a model or a loss that is not installed here, a model
            that this node refuses, or trains it on data that it cannot read.
    """
    if WEIGHTS in question:
        check_weights(settings, str(question[WEIGHTS]))
    _check_installed(question)
    if MODEL in question:
        check_refused(settings, str(question[MODEL]))
    if SOURCE in question:
        check_part(settings, str(question[SOURCE]))
    if question.get(BY_PARTY):
        check_by_party(settings)
    least, clients = settings.policy.minimum_cohort, question.get(CLIENTS)
    if type(clients) is int and clients < least:
        raise NodeConfigError(
            f"minimum-cohort is {least}, and this run has {clients} clients: no sum would be large enough; "
            "have more clients, or ask the node's operator"
        )


def _check_installed(question: Mapping[str, Any]) -> None:
    """Raise NodeConfigError if the run's model or loss is not installed on this node."""
    for entry, known in ((MODEL, MODELS), (LOSS, LOSSES)):
        if entry in question:
            try:
                known.get(str(question[entry]))
            except LearningError as error:
                log(ERROR, "%s", error)
                raise NodeConfigError(
                    f"the run's {entry} {one_line(str(question[entry]))} is not installed here: install the "
                    "package that has it, as on the server"
                ) from None


def check_part(settings: NodeSettings, source: str) -> None:
    """Raise NodeConfigError if a node without data of its own cannot load the run's data set.

    `source`: the data set, as JSON. It is loaded from where its loader looks for it, and is nobody's own.

    Raises:
        NodeConfigError: it is a file that the server names, or cannot be loaded here.
    """
    if not trains_on_a_part(settings):
        return
    try:
        asked = DataSource.from_json(source)
    except (ValueError, TypeError, AttributeError):
        raise NodeConfigError(
            "this node cannot read the server's description of the data set: use one version on both"
        ) from None
    check_named_file(settings, asked)
    try:
        load_dataset(asked.without_features)
    except Exception as error:
        log(ERROR, "%s", error)
        raise NodeConfigError(
            f"this node was started without data, and the run's data set {one_line(asked.name)} cannot "
            "be loaded here, see the log of this client: make it readable here, or start the node with "
            f"data=..."
        ) from None


def unit_in(question: Mapping[str, Any]) -> Unit:
    """Return what a run protects, a client or a record, as the server's request to join states it."""
    return "record" if question.get(UNIT) == "record" else "client"


def own_records(settings: NodeSettings, question: Mapping[str, Any]) -> int | None:
    """Return the record count of the node's own data; None without own data, or if the run protects clients.

    It refuses to join with examples that the run cannot be trained on; why is in the node's log alone.

    The server says the shapes and the kinds of an input and of a label, and what names the declaration of its
    table, which this node's own is compared with. Nothing that it says is compared with what an example
    holds: by asking with one number of classes after another it would learn of the data.

    Raises:
        DataRefusedError: without anything that might tell of the data, or that there is none for a run that
            protects records, whose number is public.
    """
    own = settings.data
    if own is None:
        return None
    parts = usable_data(own)
    try:
        # They must have the shape and the type that the server states for the run.
        for part in parts:
            shape, dtype = question.get(INPUT_SHAPE), question.get(INPUT_DTYPE)
            label_shape, label_dtype = question.get(LABEL_SHAPE) or [], question.get(LABEL_DTYPE)
            if not isinstance(shape, list) or not isinstance(label_shape, list) or dtype not in INPUT_DTYPES:
                continue
            if label_dtype not in LABEL_DTYPES:
                label_dtype = LABEL_DTYPES[0]
            of_input, of_label = ([int(size) for size in sizes] for sizes in (shape, label_shape))
            columns = str(question.get(COLUMNS) or "") or None
            taken_as(part, own.path, of_input, str(dtype), str(label_dtype), columns, of_label)
    except (LearningError, ValueError, TypeError) as error:
        raise _refused(error) from None
    if unit_in(question) != "record":
        return None
    if not (records := number_of_records(parts)):
        raise DataRefusedError(
            "data is without records, and this run protects records: bring at least one, or stay away"
        )
    return records


def number_of_records(parts: Sequence[Split]) -> int:
    """Return the number of training records in `parts[0]`, or of persons if rows belong to persons."""
    train = parts[0]
    return len(train) if train.persons is None else len(np.unique(train.persons))


def usable_data(own: OwnData) -> tuple[Split, ...]:
    """Check and return the node's own examples; the checks do not depend on any message of the server.

    Raises:
        DataRefusedError: it cannot be used, of whatever kind the error was: the kind might tell of the data.
    """
    try:
        return check_own(own)
    except Exception as error:
        raise _refused(error) from None


def tell_cut(own: OwnData) -> None:
    """Warn in the node's log about clipped values and left-out rows of its data, and about files not read."""
    if declares_pictures(own.path):
        for words in own_not_read(own.path):
            log(WARNING, "%s=%s", "data", words)
    for path in (own.path, own.held_out_path) if is_table(own.path) else ():
        if path is None:
            continue
        columns = own_columns(path)
        cut = Cut.of_own(path, columns, held_out=path == own.held_out_path)
        for words in cut.words(columns):
            log(WARNING, "%s=%s: %s", "data", path, words)
        if cut.labels_cut:
            log(WARNING, "%s=%s: %d labels lie beyond their declared range", "data", path, cut.labels_cut)


def _refused(error: Exception) -> DataRefusedError:
    log(ERROR, "%s", error)
    return DataRefusedError("data cannot be used, see the log of this client")
