"""Hashes of the data that a node trains on in each run, so that a resumed run uses the same data.

The names are hashes of private data. They lie in a file beside the node's ledger, and in the ledger if they
decide which budget a record has; nothing of them is sent. Whether the examples changed is compared when a run
is offered, before anything is charged; a round that is charged is answered whatever they are by then.
"""

import json
from dataclasses import replace
from logging import ERROR, WARNING
from pathlib import Path
from typing import TYPE_CHECKING

from gdpfed.federation import log
from gdpfed.federation.node.budget import places_of
from gdpfed.federation.node.join_checks import DataRefusedError, usable_data
from gdpfed.federation.node.ledger_file import locked_ledger
from gdpfed.federation.node.node_file import DATA, NodeFile
from gdpfed.federation.node.node_settings import NodeSettings
from gdpfed.json_files import WRONG_FORM, read_json
from gdpfed.learning.data.file_form import is_table
from gdpfed.learning.data.fingerprint import fingerprint
from gdpfed.learning.data.own import OwnData
from gdpfed.learning.data.own_files import read_own
from gdpfed.learning.data.tabular import own_columns
from gdpfed.privacy.ledgers.terms import Terms
from gdpfed.privacy.ledgers.terms_options import num_budgets

if TYPE_CHECKING:
    from gdpfed.clients.order import TrainingOrder

VERSION = 1
MOST_RUNS = 100
"""That are not in the ledger; the newest of them are kept."""
SHOWN = 12
UNUSABLE = "data cannot be used, see the log of this client"
"""All that the server is told: the same as of data that do not fit."""


def refuse_other_data(settings: NodeSettings, run: str) -> None:
    """Raise DataRefusedError if the node's examples have changed since this run began.

    Raises:
        DataRefusedError: they are others, or cannot be read; how is in the node's log alone.
    """
    own, path = settings.data, settings.kept_beside(DATA)
    if own is None or path is None or run not in (began := _runs_in(path)):
        return
    now = _name_of(own)
    if now != began[run]:
        log(
            ERROR,
            "%s=%s is not what run %s began with (SHA-256 of its content %s, then %s): put it back; or, to "
            "go on with what is there now, remove %s",
            "data",
            own.path,
            run,
            now[:SHOWN],
            began[run][:SHOWN],
            path,
        )
        raise DataRefusedError(UNUSABLE)


def keep_data(settings: NodeSettings, run: str) -> None:
    """Record the hash of the data that a run trains on, unless one was recorded before.

    It stays as long as the run is in the node's ledger.

    Raises:
        DataRefusedError: the examples cannot be read, or the file cannot be written.
    """
    own, path = settings.data, settings.kept_beside(DATA)
    if own is None or path is None:
        return
    file = _file(path)
    with locked_ledger(*places_of(settings.budgets)) as ledger_file:
        charged = {each.terms.run for each in ledger_file.ledger.runs}
    with file.locked():
        runs = _runs_in(path)
        if run in runs:
            return
        kept = runs | {run: _name_of(own)}
        # A server may begin any number of runs that cost nothing, and that the ledger forgets again.
        for oldest in [name for name in kept if name not in charged][:-MOST_RUNS]:
            del kept[oldest]
        file.write(json.dumps({"version": VERSION, "runs": kept}, indent=1).encode() + b"\n")


def dealt_by(settings: NodeSettings, terms: Terms) -> str:
    """Return a hash of what decides records' budget groups: a declared column, or all training examples.

    It is a hash of the declared column for the groups, or of the client's number and its training examples in
    their order. It is empty for records of one group, or without data of the node's own.

    Raises:
        DataRefusedError: the examples cannot be used.
    """
    own = settings.data
    if own is None or num_budgets(terms) == 1:
        return ""
    train = usable_data(own)[0]
    if train.groups is None:
        return fingerprint("shares", settings.client_id, train)
    return fingerprint("column", own_columns(own.path).record_group if is_table(own.path) else None)


def dealt_as_begun(settings: NodeSettings, run: str, order: "TrainingOrder") -> "TrainingOrder":
    """Return the instruction; if records' budget groups may have changed, all get the lowest batch rate.

    Where shares deal records out to groups of budgets, one row more deals all of them out anew. A record that
    pays for the strictest group's steps could be in the most generous one. The least rate costs every record
    what it has paid, or less. It is called after the examples of a round were read: if they had changed by
    then, so have those that this function reads.

    Raises PrivacyError: the run has not begun.
    """
    steps = order.records
    if not settings.budgets or steps is None or len(set(steps.batch_rates)) == 1:
        return order
    with locked_ledger(*places_of(settings.budgets)) as file:
        terms = file.ledger.terms(run)
    try:
        if dealt_by(settings, terms) == terms.dealt_by:
            return order
    except DataRefusedError:
        pass  # The cause is in the log.
    log(WARNING, "data have changed since run %s began: all records have the least batch rate", run)
    least = (min(steps.batch_rates),) * len(steps.batch_rates)
    return replace(order, records=replace(steps, batch_rates=least))


def _name_of(own: OwnData) -> str:
    """Return the SHA-256 of all the examples that a node trains on or holds out."""
    try:
        read = [read_own(own.path)]
        if own.held_out_path is not None:
            read.append(read_own(own.held_out_path, for_testing=True))
        elif is_table(own.path):
            read.append(read_own(own.path, for_testing=True))
        return fingerprint(read, own.held_out_share)
    except Exception as error:  # Of whatever kind: the server would read it, and it might tell of the data.
        log(ERROR, "%s", error)
        raise DataRefusedError(UNUSABLE) from None


def _runs_in(path: Path) -> dict[str, str]:
    data = _file(path).read()
    if data is None:
        return {}
    try:
        body = read_json(data)
        if body["version"] != VERSION:
            raise ValueError(
                f"the file has version {body['version']!r}, and this program reads {VERSION}: use the "
                "version that wrote it"
            )
        return {str(run): str(name) for run, name in body["runs"].items()}
    except WRONG_FORM as error:
        log(
            ERROR,
            "%s, which says what runs began with, is damaged (%s): put it back, or remove it",
            path,
            error,
        )
        raise DataRefusedError(UNUSABLE) from None


def _file(path: Path) -> NodeFile:
    return NodeFile(path, "data beside the ledger", DataRefusedError)
