"""Plans in place of runs: what follows from a cell's configuration without training."""

from collections.abc import Sequence

from conf.load import load
from conf.schema import ConfigError
from gdpfed.experiments.cells import Cell
from gdpfed.methods import make_method
from gdpfed.privacy.errors import PrivacyError
from gdpfed.privacy.plan import PrivacyPlan


def plan_or_reason(cell: Cell, overrides: Sequence[str] = ()) -> PrivacyPlan | str:
    """The cell's plan with further overrides, or why there is none."""
    try:
        return make_method(load([*cell.overrides, *overrides])).plan
    except (ConfigError, PrivacyError) as error:
        return str(error)
