"""Shows the results of posted prices, as a table and a picture."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Group
from rich.table import Table

from gdpfed.extras.fedpcs.prices import Priced
from gdpfed.report.console import Fitted
from gdpfed.report.plots import line_style, new_figure, new_panels, save, styled

HEADINGS = ("price", "zCDP", "paid", "welfare", "least eps", "median", "most", "Lambda")
QUANTILES = (0.0, 0.5, 1.0)


def price_table(rows: Sequence[Priced], method: str) -> Group:
    """Return a table with a row for each price that is paid for privacy loss, and a note on its columns."""
    table = Table(title=f"{method}: posted prices", title_justify="left")
    for heading in HEADINGS:
        table.add_column(heading, justify="right")
    for row in rows:
        noise = "none" if row.noise_magnitude is None else f"{row.noise_magnitude:.4g}"
        table.add_row(
            f"{row.posted.price:.4g}",
            f"{row.spent:.4g}",
            f"{row.paid:.4g}",
            f"{row.welfare:.4g}",
            *(f"{np.quantile(row.epsilons, each):.3g}" for each in QUANTILES),
            noise,
        )
    bounds = rows[0].posted
    note = (
        "A client of privacy cost weight c (privacy.client_aversions) answers a price R with R / (2 c) zCDP "
        f"for a whole run, from {bounds.least:g} to {bounds.highest:g}: that is best for it whatever others "
        "answer, and no other budgets have more welfare, sum(R rho - c rho^2). As epsilon that is its "
        "budget, from which groups and rates follow. zCDP, paid and welfare are those of all clients "
        "together; least eps, median and most are of their epsilons. Lambda: the plan's noise magnitude, the "
        "expected squared noise in a parameter."
    )
    reasons = dict.fromkeys(f"No plan: {row.reason}" for row in rows if row.reason)
    return Group(Fitted(table), note, *reasons)


def price_dict(row: Priced) -> dict[str, Any]:
    """Return what follows from one posted price as JSON: budgets, payments and the plan's noise."""
    return {
        **row.posted.to_scalars(),
        "spent_zcdp": row.spent,
        "paid": row.paid,
        "welfare": row.welfare,
        "budgets_zcdp": row.budgets.tolist(),
        "epsilons": row.epsilons.tolist(),
        "groups": list(row.groups),
        "noise_magnitude": row.noise_magnitude,
        "reason": row.reason,
    }


@styled
def draw_prices(rows: Sequence[Priced], path: Path) -> None:
    """Draw spending, welfare and noise over the price as PNG."""
    figure = new_figure(9.0, 2.8)
    panels = new_panels(figure, 3, columns=3)
    prices = [row.posted.price for row in rows]
    noise = [np.nan if row.noise_magnitude is None else row.noise_magnitude for row in rows]
    drawn: Sequence[tuple[str, Sequence[float]]] = (
        ("zCDP that all clients spend", [row.spent for row in rows]),
        ("welfare", [row.welfare for row in rows]),
        ("noise magnitude Λ", noise),
    )
    for index, (axes, (label, values)) in enumerate(zip(panels, drawn, strict=True)):
        axes.plot(prices, values, **line_style(index))
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("price of a unit of zCDP")
        axes.set_ylabel(label)
        axes.grid(alpha=0.3)
    save(figure, path)
