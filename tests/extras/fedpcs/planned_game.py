"""Helpers for tests of FedPCS, which make the method from settings and compute the requests of a round."""

import numpy as np

from conf.load import load
from gdpfed.extras.fedpcs.fedpcs import FedPCS
from gdpfed.methods import make_method
from gdpfed.privacy.sampling.cohorts import draw_cohorts


def fedpcs_of(overrides):
    """Return the FedPCS method of a run with these settings."""
    method = make_method(load([*overrides]))
    assert isinstance(method, FedPCS)
    return method


def asked(method, round_index=0):
    """Return the cohorts of a round and the method's requests for sums, for a model of the digits."""
    cohorts = draw_cohorts(method.plan, round_index, bytes(32))
    return cohorts, method.requests(np.zeros(650, np.float32), round_index, cohorts)
