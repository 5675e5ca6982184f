"""``gdpfed plan --price``: what clients spend at posted prices, and the resulting noise."""

from functools import partial
from typing import TYPE_CHECKING

from gdpfed.report.plan_questions import PlanAnswer, PlanQuestion

if TYPE_CHECKING:
    from conf.schema import Config


def _answer(config: "Config") -> PlanAnswer:
    """Return the results of a range of posted prices, or of the configured price.

    Raises ConfigError: a method whose clients say no budgets.
    """
    from gdpfed.extras.fedpcs.price_tables import draw_prices, price_dict, price_table
    from gdpfed.extras.fedpcs.prices import sweep

    rows = list(sweep(config))
    return PlanAnswer(
        shown=price_table(rows, config.method.name),
        values=[price_dict(row) for row in rows],
        draw=partial(draw_prices, rows),
    )


QUESTION = PlanQuestion(
    help="post prices of a unit of zCDP, which clients answer by their aversions: what they spend, and the "
    "noise that comes of it",
    answer=_answer,
)
