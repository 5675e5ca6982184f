"""The examples that a work is computed from: a client's part of the data set, or its own."""

from dataclasses import replace

import numpy as np

from gdpfed.clients.order import OrderError
from gdpfed.clients.order_checks import NO_FORM
from gdpfed.clients.works import Job
from gdpfed.learning.data import Split
from gdpfed.learning.data.own import own_held_out, own_split
from gdpfed.learning.data.text import following


def examples_of(job: Job) -> Split:
    """Return what a client trains on."""
    task, own_data = job.order.task, job.own_data
    if isinstance(own_data, Split):
        return own_data
    if own_data is None:
        return task.client_data(job.client_id)
    if task.form is None:
        raise OrderError(NO_FORM)
    own = own_split(own_data.path, task.form, own_data.held_out_share)
    own = following(own) if task.at_every_position else own
    last = max(1, len(task.record_shares)) - 1
    if own.groups is None:
        return own
    # A group without a budget is none to train by, and to refuse it would tell of the data: the strictest.
    return replace(own, groups=np.where((own.groups >= 0) & (own.groups <= last), own.groups, 0))


def held_out_of(job: Job) -> Split:
    """Return the records that a client holds out; none where it could not read its own."""
    task, own_data = job.order.task, job.own_data
    if isinstance(own_data, Split):
        return own_data.take(np.zeros(0, dtype=np.int64))
    if own_data is None:
        return task.held_out(job.client_id)
    if task.form is None:
        raise OrderError(NO_FORM)
    return own_held_out(own_data, task.form)
