"""A noised histogram of update norms before a run, which shows whether the clipping norm fits.

Every client computes one update as in a round, and says in which of a few public bins its norm is, in units
of the client's clipping norm. What that costs is in `gdpfed.privacy.sums_once`.
"""

from collections.abc import Sequence

import numpy as np

from conf.schema import Config
from gdpfed.errors import ConfigError
from gdpfed.methods.base import Method, SumRequest, Theta
from gdpfed.methods.first_sum import noise_of_share, refuse_unpaid
from gdpfed.privacy.accountants.gaussian import gaussian_epsilon
from gdpfed.privacy.events import Adjacency
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.release import NoiseAt
from gdpfed.privacy.sums_once import NormHistogram
from gdpfed.record_steps import NORM_MULTIPLES, RecordSteps

SETTING = "privacy.norm_histogram_share"
_WITHOUT = f"or leave {SETTING} out"


def refuse_norm_histogram(config: Config) -> None:
    """Raise ConfigError if another setting cannot be combined with the histogram of update norms."""
    asked = f"{SETTING}={config.privacy.norm_histogram_share:g}"
    if config.privacy.about_records:
        raise ConfigError(
            f"{asked} counts norms of whole updates, and privacy.unit=record clips gradients of records: use "
            f"privacy.unit=client, {_WITHOUT}"
        )
    others = {
        "privacy.clipping": (config.privacy.clipping, "fixed", "follows the norms by itself"),
        "training.vote": (config.training.vote, None, "chooses the step that the norms follow from"),
        "training.client_state": (config.training.client_state, None, "changes updates from round to round"),
    }
    for key, (value, only, why) in others.items():
        if value != only:
            raise ConfigError(f"{asked} does not go with {key}={value}, which {why}: leave out one of them")
    refuse_unpaid(config, SETTING, "the bins of norms")


def refuse_unplanned(config: Config, plan: PrivacyPlan) -> None:
    """Raise ConfigError if the plan omits the histogram's cost, or if rounds sum anything but updates."""
    if not isinstance(plan.first, NormHistogram) or plan.works != ("update",):
        raise ConfigError(
            f"{SETTING}={config.privacy.norm_histogram_share:g} does not go with method={config.method.name} "
            f"and privacy.sampling={config.privacy.sampling}, whose plan cannot charge it: use dp_fedavg, "
            f"pfa, idp_fedavg_* or gdpfed* with privacy.sampling=poisson, {_WITHOUT}"
        )


def planned_norms(
    config: Config, epsilons: Sequence[float], delta: float, adjacency: Adjacency
) -> NormHistogram | None:
    """Return the noise and privacy cost of the histogram of update norms; None if the run has none."""
    share = config.privacy.norm_histogram_share
    if share is None:
        return None
    sigma, moves = noise_of_share(share, epsilons, delta), NormHistogram.moved("client", adjacency)
    return NormHistogram(
        epsilon=gaussian_epsilon(sigma, delta), noise_stddev=sigma * moves, unit="client", moves=moves
    )


def norm_request(method: Method, model: Theta, clients: Sequence[int]) -> SumRequest:
    """Return the request that asks clients, before the first round, in which bin their update's norm is.

    Each is told the clipping norm of its group.
    """
    plan, asked = method.plan, set(clients)
    planned, ids = plan.first, np.asarray(sorted(asked), dtype=np.int64)
    norms = {
        client: group.at(0).clipping_norm
        for group in plan.groups
        for client in group.clients
        if client in asked
    }
    steps = {
        norm: RecordSteps(num_steps=1, batch_rates=(1.0,), clipping_norm=norm, noise_multiplier=0.0)
        for norm in set(norms.values())
    }
    return SumRequest(
        name="norm histogram",
        clients=ids,
        clipping_norm=1.0,
        noise_multiplier=0.0 if planned is None else planned.noise_stddev,
        noise_at=NoiseAt.CLIENT,
        work="norm_histogram",
        unit=plan.unit,
        records=[steps[norms[client]] for client in ids.tolist()],
        start=model,
        coordinates=len(NORM_MULTIPLES) + 1,
    )
