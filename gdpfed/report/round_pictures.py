"""Draws pictures of rounds: who took part, how many clients the server asked, and how long stages took."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from gdpfed.report.metric_display import COLOURS
from gdpfed.report.plots import new_figure, new_panels, number_rounds, save, shared_legend, styled
from gdpfed.runs.round_log import RoundLogEntry

MOST_CLIENTS, MOST_ROUNDS, MOST_ROWS = 21, 60, 40
WIDTH_INCHES, ROW_INCHES, FRAME_INCHES = 5.4, 0.19, 0.9
CELL, TURN_HEIGHT, BACK_HEIGHT = 0.86, 0.74, 0.3
HATCHES = ("", "////", "....", "\\\\\\\\", "xxxx", "----", "++++")
TOTAL, OTHER = "total", "other"
OTHER_COLOUR = "0.75"
NO_SUM = "no sum"


@dataclass(frozen=True)
class TurnRow:
    """One client's row in a picture: rounds in which it takes part, and rounds in which it subtracts noise.

    `client`: what it is called. `group`: its number. `turns`: the rounds, from 1, in which it takes part.
    `backs`: those in which it took noise back; None where that is as its group's taps say.
    """

    client: str
    group: int
    turns: Sequence[int]
    backs: Sequence[int] | None = None

    def rounds_of_backs(self, taps: Sequence[float], num_rounds: int) -> list[int]:
        """Return the rounds in which the client subtracts a part of the noise that it added earlier."""
        lags = [lag for lag, tap in enumerate(taps, start=1) if tap > 0]
        planned = {turn + lag for turn in self.turns for lag in lags}
        rounds = planned if self.backs is None else set(self.backs)
        return sorted(each for each in rounds if each <= num_rounds)


@dataclass(frozen=True)
class TurnGroup:
    """A group of clients in the picture of scheduled rounds, with its epsilon and the noise subtracted later.

    `clients`: their ids. `epsilon`: its budget. `taps`: which parts of its noise a client takes back in the
    next rounds.
    """

    clients: Sequence[int]
    epsilon: float
    taps: Sequence[float]


def shown_clients(groups: Sequence[TurnGroup]) -> list[tuple[int, int]]:
    """Choose the clients to show in the picture of scheduled rounds: all, or the first ones of each group."""
    most = max(2, MOST_CLIENTS // max(1, len(groups)))
    whole = sum(len(group.clients) for group in groups) <= MOST_CLIENTS
    return [
        (number, client)
        for number, group in enumerate(groups)
        for client in group.clients[: None if whole else most]
    ]


@styled
def draw_turns(rows: Sequence[TurnRow], groups: Sequence[TurnGroup], num_rounds: int, path: Path) -> None:
    """Draw as PNG in which rounds each client takes part; hatched bars show when it subtracts earlier noise.

    `num_rounds`: of the run; of many the first are drawn.
    """
    last = min(num_rounds, MOST_ROUNDS)
    figure = new_figure(WIDTH_INCHES, FRAME_INCHES + ROW_INCHES * len(rows))
    (axes,) = new_panels(figure, 1, columns=1)
    for place, row in enumerate(rows):
        colour, group = COLOURS[row.group % len(COLOURS)], groups[row.group]
        turns = [turn for turn in row.turns if turn <= last]
        shares = ", then ".join(f"{100 * tap:.0f} %" for tap in group.taps if tap > 0)
        taken = f"; hatched: {shares} of its noise taken back" if shares else ""
        label = f"group {row.group}, epsilon {group.epsilon:g}: a turn{taken}"
        _blocks(axes, place, turns, TURN_HEIGHT, color=colour, label=label)
        backs = row.rounds_of_backs(group.taps, last)
        _blocks(axes, place, backs, BACK_HEIGHT, facecolor="white", edgecolor=colour, hatch="//////")
    axes.set_yticks(range(len(rows)), [row.client for row in rows])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(0.5, last + 0.5)
    axes.tick_params(axis="y", length=0)
    number_rounds(axes)
    axes.set_axisbelow(True)
    if last < num_rounds:
        axes.set_xlabel(f"round, 1 to {last} of {num_rounds}")
    shared_legend(figure, [axes])
    save(figure, path)


def _blocks(axes: Axes, place: int, rounds: Sequence[int], height: float, **style: Any) -> None:
    if rounds:
        starts = [each - CELL / 2 for each in rounds]
        axes.barh([place] * len(rounds), CELL, left=starts, height=height, **style)


def shown_rounds(records: Sequence[RoundLogEntry]) -> list[RoundLogEntry]:
    """Choose the rounds to show on a timeline: all, or evenly spaced ones and failures."""
    step = -(-len(records) // MOST_ROWS)
    failed = [record for record in records if record.failures][: MOST_ROWS // 2]
    return [each for place, each in enumerate(records) if place % step == 0 or each in failed]


@styled
def draw_rounds(records: Sequence[RoundLogEntry], path: Path) -> None:
    """Draw as PNG how many of the clients asked are in each round's sums, and how long each stage took."""
    rows = shown_rounds(records)
    figure = new_figure(WIDTH_INCHES, FRAME_INCHES + ROW_INCHES * len(rows))
    clients, seconds = new_panels(figure, 2, columns=2, sharey=True)
    answered = [sum(record.survivors) for record in rows]
    missing = [max(0, asked_for(record) - summed) for record, summed in zip(rows, answered, strict=True)]
    _stack(clients, rows, {"in the sums": answered, "asked, and in no sum": missing})
    for place, record in enumerate(rows):
        if not record.summed:
            clients.annotate(NO_SUM, (0, place), fontsize="x-small", va="center")
    clients.set_xlabel("clients")
    clients.set_ylabel("round")
    clients.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=5))
    names = list(dict.fromkeys(name for record in rows for name in record.seconds if name != TOTAL))
    stages = {name: [record.seconds.get(name, 0.0) for record in rows] for name in names}
    # What is left of a round's seconds belongs to no stage.
    in_stages = [sum(of_round) for of_round in zip(*stages.values(), strict=True)] or [0.0] * len(rows)
    whole = [record.seconds.get(TOTAL, 0.0) for record in rows]
    other = [max(0.0, a - b) for a, b in zip(whole, in_stages, strict=True)]
    _stack(seconds, rows, {**stages, OTHER: other}, first=2)
    seconds.set_xlabel("seconds")
    shared_legend(figure, [clients, seconds])
    save(figure, path)


def asked_for(record: RoundLogEntry) -> int:
    """Return how many contributions were requested from clients for all secure sums of a round."""
    sizes = record.cohort_sizes
    return sum(sizes[group] for groups in record.groups_in_sums for group in groups) or sum(sizes)


def _stack(axes: Axes, rows: Sequence[RoundLogEntry], parts: dict[str, Any], first: int = 0) -> None:
    """Draw stacked horizontal bars, one for each round, from top to bottom."""
    left = [0.0] * len(rows)
    bar: dict[str, Any] = {"height": TURN_HEIGHT, "edgecolor": "white", "linewidth": 0}
    for index, (label, widths) in enumerate(parts.items(), start=first):
        style = {"color": COLOURS[index % len(COLOURS)], "hatch": HATCHES[index % len(HATCHES)]}
        style = {"color": OTHER_COLOUR} if label == OTHER else style
        axes.barh(range(len(rows)), widths, left=left, label=label, **(bar | style))
        left = [before + width for before, width in zip(left, widths, strict=True)]
    step = -(-len(rows) // 20)
    axes.set_yticks(range(0, len(rows), step), [str(row.round) for row in rows[::step]])
    axes.set_ylim(len(rows) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)
