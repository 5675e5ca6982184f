"""Test of which sums of a round are made at the same time."""

import numpy as np

from gdpfed.methods.base import SumRequest
from gdpfed.privacy.release import NoiseAt
from gdpfed.rounds.fleet import disjoint_waves


def test_waves_keep_the_order_and_never_share_a_client():
    cohorts = [[0, 1], [2, 3], [3, 4], [0], [4, 5]]
    requests = [
        SumRequest(
            name=str(k),
            clients=np.asarray(clients),
            clipping_norm=1.0,
            noise_multiplier=1.0,
            noise_at=NoiseAt.CLIENT,
            start=np.zeros(1, np.float32),
        )
        for k, clients in enumerate(cohorts)
    ]
    waves = [[each.name for each in wave] for wave in disjoint_waves(requests)]
    assert waves == [["0", "1"], ["2", "3"], ["4"]]
