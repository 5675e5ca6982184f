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
from gdpfed.clients.update import filling_steps, update_of, update_without_examples
from gdpfed.federation import log
from gdpfed.federation.node.contribution import Contributor
from gdpfed.federation.node.stand_ins import Vector
from secagg import ClientSession


@dataclass(frozen=True)
class DevicePart:
    """A node's part of one secure sum on a GPU: `there` computes the vector, and `session` masks it."""

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
        steps, law = self.steps(order, theta, who), law_of(order, self.session.parameters)
        context = order.context(theta)
        if law != "gaussian":
            return self.session.mask(self.there.vector(steps), context, noise=law)
        noise = self.there.noise(self.session.encoding(), [share], taken_back)
        return self.session.mask(self.there.vector(steps, noise), context)

    def steps(self, order: TrainingOrder, theta: Vector, who: Contributor) -> torch.Tensor:
        """Compute the client's contribution on the GPU, in integer steps: int64[d]."""
        encoding = self.session.encoding()
        if order.fills:
            return torch.from_numpy(filling_steps(encoding)).to(self.there.device)

        def computed() -> torch.Tensor:
            if who.stand_in is None:
                update = update_of(order, theta, encoding, who.client_id, who.own_data)
            else:
                update = who.change(who.stand_in, order, theta)
            return self.there.contribution(order, update, encoding)

        def zeros() -> torch.Tensor:
            update = update_without_examples(order, encoding, who.client_id, records=who.records)
            return self.there.contribution(order, update, encoding)

        return who.or_zeros(computed, zeros)


def device_part(device: torch.device, session: ClientSession) -> DevicePart | None:
    """Prepare a node's part of a sum on its GPU, or return None and log why only the CPU can mask it."""
    found = device_sum(device, session.parameters.suite)
    if isinstance(found, str):
        log(INFO, "%s", found)
        return None
    return DevicePart(found, session)
