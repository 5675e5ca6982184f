"""Computes a node's part in a sum on its GPU, from the update to the masked vector."""

from collections.abc import Sequence
from dataclasses import dataclass
from logging import INFO

import torch

from gdpfed.clients.device.choice import device_sum
from gdpfed.clients.device.sums import DeviceSum
from gdpfed.clients.keyed_noise import KeyedNoise
from gdpfed.clients.noise import law_of
from gdpfed.clients.order import TrainingOrder
from gdpfed.federation import log
from gdpfed.federation.node.contribution import Contributor
from gdpfed.federation.node.stand_ins import Vector
from secagg import ClientSession, Encoding


@dataclass(frozen=True)
class DevicePart:
    """A node's part of one secure sum: `there` computes the vector on a GPU, and `session` masks it."""

    there: DeviceSum
    session: ClientSession

    def masked_update(
        self,
        order: TrainingOrder,
        theta: Vector,
        who: Contributor,
        share: KeyedNoise,
        taken_back: Sequence[KeyedNoise],
    ) -> bytes:
        """Train on the GPU, and return the masked vector: the update plus new noise minus earlier noise."""
        encoding, law = self.session.encoding(), law_of(order, self.session.parameters)
        steps = self.steps(order, theta, who)
        context = order.context(theta)
        if law != "gaussian":
            return self.session.mask(self.there.vector(steps), context, noise=law)
        noise = self.there.noise(encoding, [share], taken_back)
        return self.session.mask(self.there.vector(steps, noise), context)

    def steps(self, order: TrainingOrder, theta: Vector, who: Contributor) -> torch.Tensor:
        """Compute the client's contribution on the GPU, in integer steps: int64[d]."""

        def filling(encoding: Encoding) -> torch.Tensor:
            return torch.zeros(encoding.dimension, dtype=torch.int64, device=self.there.device)

        return who.sent(order, theta, self.session.encoding(), self.there.contribution, filling)


def device_part(device: torch.device, session: ClientSession) -> DevicePart | None:
    """Prepare a node's part of a sum on its GPU; if only the CPU can mask it, log why and return None."""
    found = device_sum(device, session.parameters.suite)
    if isinstance(found, str):
        log(INFO, "%s", found)
        return None
    return DevicePart(found, session)
