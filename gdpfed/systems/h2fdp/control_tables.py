"""Tables of what control chose, and what it would choose at other weights."""

from collections.abc import Sequence

from gdpfed.methods.plan_tables import PlanTable
from gdpfed.systems.h2fdp.control import FACTORS, WEIGHTS, ControlSolution, Problem, over_weights, solve
from gdpfed.systems.h2fdp.radio import device_link

BAR = 10
"""Characters of the longest bar."""


def control_tables(problem: Problem) -> tuple[PlanTable, PlanTable]:
    """The choice with its costs, and a picture of interval and participants over the weights."""
    return _choice(problem), _picture(problem)


def _choice(problem: Problem) -> PlanTable:
    chosen = solve(problem)
    words = ", ".join(f"{word} {size}" for word, size in chosen.sizes.items())
    link = device_link(problem.distance)
    rounds = problem.total_steps / chosen.local_steps
    return PlanTable(
        title="control: chosen before training",
        headings=("tau", "devices a subnet", "rounds", "energy", "delay", "nu"),
        rows=[
            (
                str(chosen.local_steps),
                words,
                f"{rounds:.4g}",
                f"{chosen.cost.joules:.4g} J",
                f"{chosen.cost.seconds:.4g} s",
                f"{chosen.noise:.4g}",
            )
        ],
        notes=(
            f"Modelled, not measured: {problem.dimension} parameters of 32 bits, devices "
            f"{problem.distance:g} m from their edge at {link.bits_a_second / 1e6:.4g} Mbit/s, backhaul of "
            f"100 Mbit/s; weights {', '.join(f'{each:g}' for each in problem.weights)}, nu over "
            f"{problem.noise_scale:g}. The noise that is compared is estimated; "
            "the plan calibrates what was chosen.",
        ),
        text_columns=("devices a subnet",),
    )


def _picture(problem: Problem) -> PlanTable:
    most: dict[str, int] = {"tau": max(problem.local_steps)}
    most |= {word: max(sizes) for word, sizes in problem.sizes.items()}
    rows: list[Sequence[str]] = []
    for name, row in zip(WEIGHTS, over_weights(problem), strict=True):
        for factor, chosen in zip(FACTORS, row, strict=True):
            values = _values(chosen)
            cells = [f"{value:3d} {_bar(value, most[key])}" for key, value in values.items()]
            rows.append((name, f"x {factor:g}", *cells))
    return PlanTable(
        title="tau and devices of a subnet, where one weight is multiplied",
        headings=("weight", "times", *most),
        rows=rows,
        text_columns=("weight", *most),
    )


def _values(chosen: ControlSolution) -> dict[str, int]:
    values: dict[str, int] = {"tau": chosen.local_steps}
    return values | {str(word): size for word, size in chosen.sizes.items()}


def _bar(value: int, most: int) -> str:
    return "▇" * max(1, round(BAR * value / most))
