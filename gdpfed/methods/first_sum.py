"""Plans the noise of a vote or histogram before round 1, and checks that the settings allow such a sum."""

import math
from collections.abc import Sequence

from conf.schema import Config
from gdpfed.errors import ConfigError
from gdpfed.privacy.accountants.gaussian import gaussian_sigma


def noise_of_share(share: float, epsilons: Sequence[float], delta: float) -> float:
    """Return the noise multiplier of a release that costs the part ``share`` of the smallest budget's mu^2.

    mu is the parameter of one Gaussian release that costs the whole budget, of which squares add up.
    """
    return gaussian_sigma(min(epsilons), delta) / math.sqrt(share)


def refuse_unpaid(config: Config, setting: str, summed: str) -> None:
    """Raise ConfigError if the settings do not allow a secure, noised sum before the first round.

    `setting`: which asks for the sum. `summed`: what clients send for it.
    """
    without = f"or leave {setting} out"
    if not config.secagg.hides_updates:
        raise ConfigError(
            f"{setting} promises that {summed} are seen in one sum, and secagg=off shows each: use "
            f"secagg=pairwise, {without}"
        )
    if config.privacy.noise != "gaussian" or config.privacy.accountant == "theorem1":
        key = "noise" if config.privacy.noise != "gaussian" else "accountant"
        raise ConfigError(
            f"{setting} needs Gaussian noise and the pld or rdp accountant, and privacy.{key}="
            f"{getattr(config.privacy, key)} has no proof for that: use another, {without}"
        )
    if config.run.mailbox is not None or config.privacy.price is not None:
        key = "run.mailbox" if config.run.mailbox is not None else "privacy.price"
        raise ConfigError(f"{setting} does not go with {key}, which cannot pay for it: leave one of them out")
    clients, least = config.dataset.num_clients, config.secagg.minimum_cohort
    if clients < least:
        raise ConfigError(
            f"{setting} is one sum over all dataset.num_clients={clients} clients, fewer than "
            f"secagg.minimum_cohort={least}: use more clients, {without}"
        )
