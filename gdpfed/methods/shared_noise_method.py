"""The base class of the IDP-FedAvg methods and GDPFed*: one sum of all clients under one noise."""

from typing import ClassVar

import numpy as np

from gdpfed.methods.base import Cohorts, Method, SumRequest, Theta


class SharedNoise(Method):
    """All cohorts are one sum whose noise has one standard deviation s; group m is clipped to C_m.

    Groups are drawn independently, and a client moves the sum by at most its own C_m. So for a client of
    group m a round is the sampled Gaussian mechanism of q_m, C_m and s, of multiplier sigma_m = s / C_m,
    whatever the other groups do.

    One sum has one weight, omega = 1 / (q n): it is squared_participation and uniform alike, since
    r^2 / sum_j r_j^2 is 1 where there is one sum. Weights by group would need one noised sum a group, and
    of those any weights add more noise for the same step: sum_m omega_m^2 s^2 / (sum_m omega_m r_m)^2 is at
    least s^2 / sum_m r_m^2 (Cauchy and Schwarz), above the s^2 / (sum_m r_m)^2 of the one sum.
    """

    adapts_clipping: ClassVar[bool] = True
    has_turns: ClassVar[bool] = True
    rehearsed: ClassVar[bool] = True

    def requests(self, theta: Theta, round_index: int, cohorts: Cohorts) -> list[SumRequest]:
        """One sum over the cohorts of all groups, bounded and noised as the largest C_m needs."""
        groups = [group.at(round_index) for group in self.plan.groups]
        largest = max(group.clipping_norm for group in groups)
        norms = [
            np.full(len(cohort), group.clipping_norm) for group, cohort in zip(groups, cohorts, strict=True)
        ]
        request = SumRequest(
            name="all groups",
            clients=np.concatenate(cohorts),
            clipping_norm=largest,
            noise_multiplier=max(group.noise_stddev for group in groups) / largest,
            noise_at=self.noise_at,
            noise=self.plan.noise,
            taps=self.plan.mechanism.taps_of(0),
            start=theta,
            client_clipping_norms=np.concatenate(norms),
            least_norm=min(group.clipping_norm for group in groups),
        )
        return [request]

    @property
    def sum_weights(self) -> list[float]:
        return [self.weighting.group_weights[0]]
