"""Further options of ``gdpfed plan``, such as ``--price``; other packages can add their own."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gdpfed.errors import ConfigError
from gdpfed.registry import Registry

if TYPE_CHECKING:
    from rich.console import RenderableType

    from conf.schema import Config


@dataclass(frozen=True, eq=False, kw_only=True)
class PlanAnswer:
    """The output of a further option of ``gdpfed plan``: for the terminal, as JSON, and as a picture.

    `shown`: for the terminal. `values`: the same as JSON. `draw`: writes it as PNG.
    """

    shown: "RenderableType"
    values: object
    draw: Callable[[Path], None]


@dataclass(frozen=True, eq=False, kw_only=True)
class PlanQuestion:
    """A further option of ``gdpfed plan``: its help text, and the function that computes its output.

    `help`: for the help page. `answer`: answers it for a configuration.
    """

    help: str
    answer: "Callable[[Config], PlanAnswer]"


PLAN_QUESTIONS: Registry[PlanQuestion] = Registry(
    "question",
    "gdpfed.plan_questions",
    error=ConfigError,
)
