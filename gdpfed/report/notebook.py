"""Shows plans and runs in notebooks: tables and pictures as HTML without scripts."""

from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from html import escape
from pathlib import Path
from typing import Any, Self

from rich.console import Group
from rich.table import Table as RichTable

from conf.schema import Config, SecAggConfig
from gdpfed.methods import make_method
from gdpfed.methods.base import Method
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.report.console import Fitted, Table
from gdpfed.report.facts import FactLines, Notes
from gdpfed.report.party_lines import party_lines
from gdpfed.report.plan_lines import plan_warnings
from gdpfed.report.plan_table import heading, plan_lines, plan_table


@dataclass(frozen=True, kw_only=True, repr=False)
class ShownPlan(PrivacyPlan):
    """A privacy plan that a notebook displays as ``gdpfed plan`` does on a terminal.

    `method`: it has the plan, and weighs what is released. `secagg`: how sums are made. `notes`: what is weak
    in the plan, one line each.
    """

    method: Method = field(compare=False)
    secagg: SecAggConfig = field(compare=False)
    notes: tuple[str, ...] = field(default=(), compare=False)

    @classmethod
    def of(cls, config: Config) -> Self:
        """Make the privacy plan of a complete configuration, ready for display.

        Raises ConfigError, PrivacyError: as `make_method`.
        """
        method = make_method(config)
        plan = method.plan
        own = {each.name: getattr(plan, each.name) for each in fields(plan)}
        notes = (*party_lines(config, plan), *plan_warnings(plan, config))
        return cls(**own, method=method, secagg=config.secagg, notes=notes)

    def __repr__(self) -> str:
        return "\n".join([*plan_lines(self.method, self.secagg), *self.notes])

    def _repr_html_(self) -> str:
        return html_of(heading(self.method, self.secagg), plan_table(self.method), *self.notes)


def html_of(*shown: Any) -> str:
    """Convert tables, groups of tables and lines of text to HTML; everything is escaped."""
    return "\n".join(map(_piece, shown))


def _piece(shown: Any) -> str:
    if isinstance(shown, Group):
        return html_of(*shown.renderables)
    if isinstance(shown, Fitted):
        return _piece(shown.table)
    if isinstance(shown, RichTable):
        rows = zip(*(column.cells for column in shown.columns), strict=True)
        headings = [str(column.header) for column in shown.columns]
        return _table(str(shown.title or ""), headings, list(rows), str(shown.caption or ""))
    if isinstance(shown, FactLines):
        return _table("", (), [(fact.name, fact.value) for fact in shown.facts], "")
    if isinstance(shown, Notes):
        return html_of(*shown.sentences)
    if isinstance(shown, Table):
        return _table(shown.title, shown.headings, shown.rows, shown.note)
    return f"<p>{escape(str(shown))}</p>"


def _table(title: str, headings: Sequence[str], rows: Sequence[Sequence[Any]], note: str) -> str:
    def row(cells: Sequence[Any], tag: str) -> str:
        marked = (escape(str(cell)).replace("\n", "<br>") for cell in cells)
        return f"<tr>{''.join(f'<{tag}>{cell}</{tag}>' for cell in marked)}</tr>"

    head = f"<caption>{escape(title)}</caption>" if title else ""
    head += f"<thead>{row(headings, 'th')}</thead>" if headings else ""
    body = "".join(row(cells, "td") for cells in rows)
    below = f"<p>{escape(note)}</p>" if note else ""
    return f"<table>{head}<tbody>{body}</tbody></table>{below}"


def picture(path: Path, words: str) -> str:
    """Return an HTML image with a PNG file embedded; return "" if the file does not exist."""
    drawn = path.read_bytes() if path.is_file() else b""
    encoded = b64encode(drawn).decode()
    return f'<img alt="{escape(words)}" width="480" src="data:image/png;base64,{encoded}">' if drawn else ""
