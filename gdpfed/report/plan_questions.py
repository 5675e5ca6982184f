"""Further questions, ``gdpfed plan --<name>``; other packages can add theirs."""

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
    """The answer to a further question about a plan, as text, JSON and picture.

    `shown`: for the terminal. `values`: the same as JSON. `draw`: writes it as PNG.
    """

    shown: "RenderableType"
    values: object
    draw: Callable[[Path], None]


@dataclass(frozen=True, eq=False, kw_only=True)
class PlanQuestion:
    """A further question about a plan; `gdpfed plan --help` loads its module, so imports are inside.

    `help`: for the help page. `answer`: answers it for a configuration.
    """

    help: str
    answer: "Callable[[Config], PlanAnswer]"


PLAN_QUESTIONS: Registry[PlanQuestion] = Registry(
    "question",
    "gdpfed.plan_questions",
    error=ConfigError,
)
