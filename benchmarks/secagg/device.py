"""Measures the time from a client's update to its masked vector, on a GPU and on a CPU.

Both begin with the update in float64 in their own memory, and with a client session that has its secret
shares; both end with the bytes of the message, key agreement with every partner and noise included. Runs on
GPU and CPU alternate.

    python -m benchmarks.secagg.device --device cuda             half a minute
    python -m benchmarks.secagg.device --device cuda --quick     a shorter vector and fewer members
"""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal
from unittest.mock import patch

import numpy as np
import torch

from benchmarks.harness import fastest, publish, read_options, three
from benchmarks.secagg.ours import parameters_for
from gdpfed.clients.device.choice import device_sum
from gdpfed.clients.device.discrete import sample_on
from gdpfed.clients.device.packing import copied, packed_words
from gdpfed.clients.device.sums import DeviceSum
from gdpfed.clients.keyed_noise import AES, CHACHA20, KEY_BYTES, KeyedNoise
from gdpfed.clients.noise import keyed_steps, new_share
from gdpfed.clients.order import TrainingOrder
from gdpfed.clients.update import contribution_steps
from gdpfed.errors import InputError
from gdpfed.learning.data import DataSource
from gdpfed.learning.task import Task
from gdpfed.learning.training.optimizers import LocalTraining
from gdpfed.report.console import Table
from secagg import ClientSession, ServerSession, Stage
from secagg.arithmetic.noise_levels import INTEGER_NOISE_STDDEVS as NOISE_NAMES
from secagg.crypto import prg
from testing.secagg_sums import POLICY

ORDER = TrainingOrder(
    Task(DataSource("digits"), "linear", "iid", 40, seed=0), LocalTraining(1, 1, 1.0, 0.0), 0, "auto"
)
LAWS: tuple[Literal["gaussian", "discrete_gaussian"], ...] = ("gaussian", "discrete_gaussian")
SUITES = ("aes128ctr", "chacha20")
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Effort:
    """The size of a measurement: clients in a secure sum, length of the vectors, number of repetitions."""

    members: int
    dimension: int
    repeats: int


WHOLE, QUICK = Effort(120, 11_000_000, 4), Effort(30, 1_000_000, 3)


class Client:
    """A client in a secure sum, ready to mask its vector; each repetition starts from this same state.

    `suite`: of the masks. `effort`: the sizes of the sum.
    """

    def __init__(self, suite: str, effort: Effort) -> None:
        self.parameters = parameters_for(effort.members, effort.dimension, suite=suite)
        ids = range(1, effort.members + 1)
        server, clients = ServerSession(self.parameters, ids), {i: ClientSession(i, POLICY) for i in ids}
        for stage, answer in (
            (Stage.ADVERTISE, ClientSession.advertise),
            (Stage.SHARE, ClientSession.share),
        ):
            if server.stage is not stage:
                raise InputError(f"the sum is in stage {server.stage}, not {stage}")
            for i, request in server.requests().items():
                server.receive(i, answer(clients[i], request))
            server.close_stage()
        self.members = clients[1].accept_shares(server.requests()[1])
        self._saved = clients[1].to_bytes()
        self.encoding = self.parameters.encoding(self.members)
        self.share = new_share(self.parameters, self.members)

    @property
    def session(self) -> ClientSession:
        """A fresh copy of the session, in its state just before masking."""
        return ClientSession.from_bytes(self._saved, POLICY)

    def on_cpu(self, update: torch.Tensor, law: Literal["gaussian", "discrete_gaussian"]) -> bytes:
        """Compute the client's masked message on the CPU alone."""
        steps = contribution_steps(ORDER, update, self.encoding)
        if law == "discrete_gaussian":
            return self.session.mask(steps, noise=law)
        return self.session.mask(steps, noise=keyed_steps(self.encoding, [self.share], [], CPU))

    def on_device(
        self, there: DeviceSum, update: torch.Tensor, law: Literal["gaussian", "discrete_gaussian"]
    ) -> bytes:
        """Compute the client's masked message on the GPU."""
        steps = there.contribution(ORDER, update, self.encoding)
        if law == "discrete_gaussian":
            return self.session.mask(there.vector(steps), noise=law)
        return self.session.mask(there.vector(steps, there.noise(self.encoding, [self.share], [])))


def message_table(there: DeviceSum, name: str, effort: Effort, clients: Mapping[str, Client]) -> Table:
    """Make a table of milliseconds from an update to the masked message, on CPU and GPU."""
    update = torch.from_numpy(np.random.default_rng(0).normal(size=effort.dimension))
    away = update.to(there.device)
    cores, rows = os.cpu_count() or 1, []
    for law in LAWS:
        # A client has two threads for its masks by default; here it has the whole machine.
        with patch.object(prg, "NUM_THREADS", cores):
            best = fastest(
                effort.repeats,
                aes=lambda law=law: clients["aes128ctr"].on_cpu(update, law),  # type: ignore[misc]
                chacha=lambda law=law: clients["chacha20"].on_cpu(update, law),  # type: ignore[misc]
                device=lambda law=law: clients["chacha20"].on_device(there, away, law),  # type: ignore[misc]
            )
        times = [best[each] for each in ("aes", "chacha", "device")]
        ratios = [three(each / best["device"]) for each in times[:2]]
        rows.append((law, *(_milliseconds(each) for each in times), *ratios))
    headings = (
        "noise",
        "CPU, aes128ctr",
        "CPU, chacha20",
        f"{name}, chacha20",
        "aes128ctr / it",
        "chacha20 / it",
    )
    title = f"Update to masked vector in milliseconds, n = {effort.members}, d = {effort.dimension:,}"
    return Table(title, headings, rows, f"The CPU has {cores} threads for masks.")


def steps_table(there: DeviceSum, name: str, effort: Effort, client: Client) -> Table:
    """Make a table of the milliseconds of each step from an update to the masked vector on the GPU."""
    device, masks = there.device, there.masks
    update = torch.from_numpy(np.random.default_rng(0).normal(size=effort.dimension)).to(device)
    steps = there.contribution(ORDER, update, client.encoding)
    residues = steps.to(torch.int32)
    keys = [(os.urandom(32), 1 - 2 * (number % 2)) for number in range(effort.members)]
    name_of_noise = client.encoding.levels.base_stddev if client.encoding.levels else NOISE_NAMES[0]
    bits, by_aes = client.parameters.modulus_bits, KeyedNoise(client.share.key, client.share.stddev, AES)
    works: dict[str, Callable[[], object]] = {
        "clip and round": lambda: there.contribution(ORDER, update, client.encoding),
        "rounded Gaussian, ChaCha20": lambda: there.noise(client.encoding, [client.share], []),
        "rounded Gaussian, AES on the CPU": lambda: there.noise(client.encoding, [by_aes], []),
        "discrete Gaussian, AES on the CPU": lambda: sample_on(
            device, effort.dimension, name_of_noise, bytes(32)
        ),
        f"{effort.members} masks": lambda: masks.add(residues, keys),
        f"pack to {bits} bits": lambda: packed_words(residues, bits),
        "copy to the host": lambda: copied(residues),
    }
    best = fastest(effort.repeats, **{str(i): _waits(each, device) for i, each in enumerate(works.values())})
    rows = [(work, _milliseconds(best[str(number)])) for number, work in enumerate(works)]
    return Table(f"Steps on {name}, d = {effort.dimension:,}", ("step", "milliseconds"), rows)


def differing(there: DeviceSum, effort: Effort, client: Client) -> str:
    """Return a sentence that says how many coordinates of rounded noise differ between GPU and CPU."""
    found = 0
    for _ in range(effort.repeats):
        share = KeyedNoise(os.urandom(KEY_BYTES), client.share.stddev, CHACHA20)
        here = keyed_steps(client.encoding, [share], [], CPU)
        away = there.noise(client.encoding, [share], []).cpu().numpy()
        found += int(np.count_nonzero(here != away))
    return f"{found} of {effort.repeats * effort.dimension:,} rounded draws differ from those of the CPU."


def _waits(act: Callable[[], object], device: torch.device) -> Callable[[], object]:
    def waited() -> None:
        act()
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    return waited


def _milliseconds(seconds: float) -> str:
    return three(1e3 * seconds)


def tables(there: DeviceSum, name: str, effort: Effort) -> Sequence[Table]:
    """Make all tables on masking with a GPU."""
    clients = {suite: Client(suite, effort) for suite in SUITES}
    messages = message_table(there, name, effort, clients)
    steps = steps_table(there, name, effort, clients[CHACHA20])
    return [messages, replace(steps, note=differing(there, effort, clients[CHACHA20]))]


def main() -> None:
    """Measure masking on the GPU and on the CPU, and show the tables."""
    options = read_options(__doc__, overrides=False, quick=False, device="cuda")
    device = torch.device(options.device)
    if device.type != "cuda" or not torch.cuda.is_available():
        raise InputError(f"there is no GPU {device}: run this where PyTorch sees a CUDA device")
    there = device_sum(device, CHACHA20)
    if isinstance(there, str):
        raise InputError(there)
    publish(
        tables(there, torch.cuda.get_device_name(device), QUICK if options.quick else WHOLE), options.write
    )


if __name__ == "__main__":
    try:
        main()
    except InputError as error:
        sys.exit(str(error))
