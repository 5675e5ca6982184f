"""H2FDP's Algorithm 1: chooses local steps and participants by energy, delay and noise.

All inputs are public and none of them changes in a run. So the problem is solved once, for all steps, before
training, by looking at every choice; what is chosen is part of the plan. Energy and delay follow from the
radio model of the source, Lin and Brinton, which gives power, bandwidth, noise and path loss, and neither the
reference distance nor how devices share the band: 1 m and turns are choices of this project. Figures are
modelled, and follow from nothing that is measured.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

from gdpfed.decimal_numbers import counted
from gdpfed.errors import PrivacyError
from gdpfed.extras.h2fdp.subnet_sums import Trust
from gdpfed.methods.base import PlanTable

BITS = 32
"""Of a parameter on the air, Q."""
DEVICE_DBM, BANDWIDTH_HERTZ, NOISE_DBM_HERTZ = 24.0, 1e6, -173.0
PATH_LOSS_DB, PATH_LOSS_DB_A_DECADE, REFERENCE_METRES = -30.0, 37.5, 1.0
BACKHAUL_DBM, BACKHAUL_BITS_A_SECOND = 38.0, 100e6


@dataclass(frozen=True)
class Link:
    """A radio link: its power in watts, and its rate in bits per second."""

    watts: float
    bits_a_second: float

    def seconds(self, bits: float) -> float:
        """Return the time to send this many bits, in seconds."""
        return bits / self.bits_a_second

    def joules(self, bits: float) -> float:
        """Return the energy to send this many bits, in joules."""
        return self.watts * self.seconds(bits)


@dataclass(frozen=True)
class Cost:
    """The energy and time that all rounds of a training cost the devices and edge servers."""

    joules: float
    seconds: float


def watts(dbm: float) -> float:
    """Convert dBm to watts."""
    return float(10 ** (dbm / 10 - 3))


def device_link(metres: float) -> Link:
    """Return a device's radio link to its edge server at this distance, with Shannon's capacity as the rate.

    beta = -30 - 37.5 log10(metres / 1 m) is in dB, and is converted; the source computes with it as it is.
    """
    loss = PATH_LOSS_DB - PATH_LOSS_DB_A_DECADE * math.log10(metres / REFERENCE_METRES)
    power = watts(DEVICE_DBM)
    ratio = power * 10 ** (loss / 10) / (watts(NOISE_DBM_HERTZ) * BANDWIDTH_HERTZ)
    return Link(power, BANDWIDTH_HERTZ * math.log2(1 + ratio))


BACKHAUL = Link(watts(BACKHAUL_DBM), BACKHAUL_BITS_A_SECOND)


Floats = npt.NDArray[np.float64]
NoiseTerm = Callable[[int, Mapping[Trust, Floats]], Floats]
"""nu of tau and of the devices of a subnet under every trust, as arrays of one shape."""


@dataclass(frozen=True, kw_only=True)
class Problem:
    """The choice of local steps and participants that minimises a weighted sum of energy, delay and noise.

    Attributes:
        total_steps: R.
        local_steps: every tau that is looked at.
        windows: J by tau.
        subnets: how many there are under every trust.
        sizes: s, every number of devices of a subnet that is looked at, by trust.
        dimension: d.
        weights: a1, a2, a3.
        noise_scale: phi.
        distance: of devices from their edge, in metres.
        together: whether devices of a subnet send at the same time.
        noise: nu.
    """

    total_steps: int
    local_steps: Sequence[int]
    windows: Callable[[int], int]
    subnets: Mapping[Trust, int]
    sizes: Mapping[Trust, Sequence[int]]
    dimension: int
    weights: tuple[float, float, float]
    noise_scale: float
    distance: float
    together: bool
    noise: NoiseTerm


@dataclass(frozen=True, kw_only=True)
class ControlSolution:
    """The best local steps and participants, with their energy, time and noise.

    Attributes:
        local_steps: tau.
        sizes: devices of a subnet that take part in a round, by trust.
        cost: of R / tau rounds.
        noise: nu.
        objective: the weighted sum.
    """

    local_steps: int
    sizes: Mapping[Trust, int]
    cost: Cost
    noise: float
    objective: float


def solve(problem: Problem) -> ControlSolution:
    """Compare all choices of local steps and participants; return the one with the least weighted cost.

    Raises PrivacyError: no choice has noise that is finite.
    """
    words = list(problem.sizes)
    grid = np.meshgrid(*(np.asarray(problem.sizes[word], float) for word in words), indexing="ij")
    sizes: dict[Trust, Floats] = dict(zip(words, grid, strict=True))
    bits, link = problem.dimension * BITS, device_link(problem.distance)
    devices = np.asarray(sum(problem.subnets[word] * sizes[word] for word in words))
    count = sum(problem.subnets.values())
    slots = count if problem.together else devices
    best: ControlSolution | None = None
    for tau in problem.local_steps:
        windows, rounds = problem.windows(tau), problem.total_steps / tau
        joules = rounds * (count * BACKHAUL.joules(bits) + windows * devices * link.joules(bits))
        seconds = rounds * (2 * count * BACKHAUL.seconds(bits) + windows * slots * link.seconds(bits))
        seconds = np.broadcast_to(np.asarray(seconds), joules.shape)
        noise = problem.noise(tau, sizes)
        on_energy, on_delay, on_noise = problem.weights
        value = on_energy * joules + on_delay * seconds
        if on_noise:
            value = value + on_noise * noise / problem.noise_scale
        place = np.unravel_index(int(np.argmin(value)), value.shape)
        if math.isfinite(value[place]) and (best is None or value[place] < best.objective):
            best = ControlSolution(
                local_steps=tau,
                sizes={word: round(float(sizes[word][place])) for word in words},
                cost=Cost(float(joules[place]), float(seconds[place])),
                noise=float(noise[place]),
                objective=float(value[place]),
            )
    if best is None:
        raise PrivacyError(
            "method.control=planned finds no rounds under which the noise is finite: allow larger "
            "budgets, or choose the rounds yourself with method.control=none"
        )
    return best


def printed_noise(
    *,
    dimension: int,
    batch_rate: float,
    gradient_norm: float,
    delta: float,
    epsilon: float,
    windows: Callable[[int], int],
    subnets: Mapping[Trust, int],
    power: int,
) -> NoiseTerm:
    """Return H2FDP's noise term (Theorem 4.3), a function of local steps tau and devices per edge server.

    Printed is `power` 3; correct is 2. The noise term is
    4 tau (J^power + 1) d q^2 G^2 ln(1 / delta) / (S^2 epsilon^2) times the sum over subnets of 1 / s^2 where
    noise is added once, and 1 / s where it is added on every device.
    """
    once = 4 * dimension * (batch_rate * gradient_norm / epsilon) ** 2 * math.log(1 / delta)
    total = sum(subnets.values())

    def noise(tau: int, sizes: Mapping[Trust, Floats]) -> Floats:
        spread = sum(
            subnets[word] / (size if word == "untrusted" else size**2) for word, size in sizes.items()
        )
        return np.asarray(once * tau * (windows(tau) ** power + 1) / total**2 * spread)

    return noise


def planned_noise(
    *,
    variance: Callable[[int, Trust, int], float],
    dimension: int,
    smoothness: float,
    learning_rate: float,
    windows: Callable[[int], int],
    subnets: Mapping[Trust, int],
) -> NoiseTerm:
    """Return a function that computes how much planned noise raises the loss, in units of eta tau / 2.

    beta is the smoothness, d the dimension, J the number of sums that an edge server makes in a round, eta
    the learning rate, tau the local steps in a round, and S the number of edge servers (subnets).

    `variance` is that of a coordinate of a subnet's mean after one sum, of tau, trust and devices. A round's
    step moves the loss by -(eta tau / 2) ||grad||^2, and its noise by (beta / 2) d J / S^2 sum_c Var_c.
    """
    total = sum(subnets.values())

    def noise(tau: int, sizes: Mapping[Trust, Floats]) -> Floats:
        spread: Any = 0.0
        for word, size in sizes.items():
            known = {one: variance(tau, word, round(one)) for one in np.unique(size).tolist()}
            spread = spread + subnets[word] * np.vectorize(known.__getitem__, otypes=[float])(size)
        factor = smoothness * dimension * windows(tau) / (learning_rate * tau * total**2)
        return np.asarray(factor * spread)

    return noise


FACTORS = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
WEIGHTS = ("a1, energy", "a2, delay", "a3, noise")


def over_weights(problem: Problem) -> list[list[ControlSolution]]:
    """Solve the problem with one weight at a time multiplied by each factor; return solutions by weight."""
    solutions = []
    for index in range(len(WEIGHTS)):
        row = []
        for factor in FACTORS:
            first, second, third = (
                weight * (factor if at == index else 1.0) for at, weight in enumerate(problem.weights)
            )
            row.append(solve(replace(problem, weights=(first, second, third))))
        solutions.append(row)
    return solutions


BAR = 10
"""Characters of the longest bar."""


def control_tables(problem: Problem) -> tuple[PlanTable, PlanTable]:
    """Return a table of how steps and participants change with each weight, and one of those chosen."""
    # The choice comes last, where a terminal that is full still shows it.
    return _table_over_weights(problem), _table_of_choice(problem)


def _table_of_choice(problem: Problem) -> PlanTable:
    chosen = solve(problem)
    words = ", ".join(f"{word} {size}" for word, size in chosen.sizes.items())
    link = device_link(problem.distance)
    rounds = math.ceil(problem.total_steps / chosen.local_steps)
    taken, asked = rounds * chosen.local_steps, problem.total_steps
    return PlanTable(
        title="control: chosen before training",
        headings=("tau", "devices a subnet", "rounds", "energy", "delay", "nu"),
        rows=[
            (
                str(chosen.local_steps),
                words,
                str(rounds),
                f"{chosen.cost.joules:.4g} J",
                f"{chosen.cost.seconds:.4g} s",
                f"{chosen.noise:.4g}",
            )
        ],
        notes=(
            f"The run makes {counted(rounds, 'round')} of {chosen.local_steps} steps, in place of "
            f"run.num_rounds and training.local_steps: {taken} steps for the {asked} that were asked for"
            f"{'' if taken == asked else ', as rounds are whole'}. tau: a device's steps in a round. nu: the "
            "noise of a round, as its part in what is minimised (method.control_noise). Energy and delay "
            f"are those of {asked} steps.",
            f"Modelled, not measured: {problem.dimension} parameters of 32 bits, devices "
            f"{problem.distance:g} m from their edge at {link.bits_a_second / 1e6:.4g} Mbit/s, backhaul of "
            f"100 Mbit/s; weights {', '.join(f'{each:g}' for each in problem.weights)}, nu over "
            f"{problem.noise_scale:g}. The noise that is compared is estimated; "
            "the plan calibrates what was chosen.",
        ),
        text_columns=("devices a subnet",),
    )


def _table_over_weights(problem: Problem) -> PlanTable:
    most: dict[str, int] = {"tau": max(problem.local_steps)}
    most |= {word: max(sizes) for word, sizes in problem.sizes.items()}
    rows: list[Sequence[str]] = []
    for name, row in zip(WEIGHTS, over_weights(problem), strict=True):
        solved = zip(FACTORS, row, strict=True)
        for _, alike in groupby(solved, key=lambda each: (each[1].local_steps, each[1].sizes)):
            factors, choices = zip(*alike, strict=True)
            values: dict[str, int] = {"tau": choices[0].local_steps}
            values |= {str(word): size for word, size in choices[0].sizes.items()}
            bars = {key: "▇" * max(1, round(BAR * value / most[key])) for key, value in values.items()}
            cells = [f"{value:3d} {bars[key]}" for key, value in values.items()]
            times = " to ".join(f"{factor:g}" for factor in dict.fromkeys((factors[0], factors[-1])))
            rows.append((name, f"x {times}", *cells))
    return PlanTable(
        title="tau and devices of a subnet, where one weight is multiplied",
        headings=("weight", "times", *most),
        rows=rows,
        text_columns=("weight", *most),
    )
