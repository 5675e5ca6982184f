"""Shows survival curves and the log-rank test, as tables and as a picture."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from gdpfed.extras.statistics.figures import NORMAL_QUANTILE, Figure
from gdpfed.extras.statistics.result import Statistics
from gdpfed.extras.statistics.survival import Curve
from gdpfed.report.console import Table
from gdpfed.report.metric_display import COLOURS

HEADINGS = ("by", "at risk", "events", "survival", "95 % band", "± noise")
TEST_HEADINGS = ("group", "events", "if alike", "statistic", "p")
NOT_KNOWN = "?"
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 640, 320, 46, 150, 10, 30


def survival_note(found: Statistics) -> str:
    """Explain in one note how to read the survival curves."""
    unknown = [curve.group for curve in found.curves if curve.group is not None and not _known(curve)]
    left_out = f". Left out, as nothing is known of them: {', '.join(unknown)}" if unknown else ""
    return (
        "Bands hold for one end of an interval at a time (95 %), and cover noise and sampling; ± is what the "
        f"noise alone leaves open, {NORMAL_QUANTILE * found.noise_stddev:.3g} in each cell of the sum. "
        f"{NOT_KNOWN}: fewer at risk than {found.minimum_count:g}, or than the noise can tell{left_out}"
    )


def _known(curve: Curve) -> bool:
    """Whether the survival at the end of any interval is known."""
    return curve.n.value is not None and any(point.survival is not None for point in curve.points)


def survival_tables(found: Statistics) -> Iterator[Table]:
    """Yield a table for every curve with enough records, and a table of the log-rank test."""
    for curve in filter(_known, found.curves):
        whose = "all" if curve.group is None else curve.group
        count, half = _shown(curve.n, ".0f"), _shown(curve.median, ".4g")
        points = list[list[str]]()
        for point in curve.points:
            end = f"{point.end:.6g}"
            if (
                point.survival is None
                or point.low is None
                or point.high is None
                or point.at_risk is None
                or point.events is None
                or point.noise_stddev is None
            ):
                points.append([end, *[NOT_KNOWN] * 5])
                continue
            band = f"{point.low:.3f} to {point.high:.3f}"
            noise = f"{NORMAL_QUANTILE * point.noise_stddev:.2g}"
            points.append(
                [end, f"{point.at_risk:.0f}", f"{point.events:.0f}", f"{point.survival:.3f}", band, noise]
            )
        yield Table(f"Survival of {whose}: {count} {found.counted}, median {half}", HEADINGS, points)
    if (test := found.log_rank) is not None:
        said = ((f"{test.statistic:.3g} ({test.degrees} df)", f"{test.p_value:.2g}"),)
        ends = [*said, *([("", "")] * (len(test.groups) - 1))]
        rows = [
            [name, f"{seen:.0f}", f"{alike:.1f}", *end]
            for name, seen, alike, end in zip(test.groups, test.observed, test.expected, ends, strict=True)
        ]
        yield Table("Log-rank test: do the groups survive alike?", TEST_HEADINGS, rows)


def _shown(figure: Figure, form: str) -> str:
    if figure.value is None:
        return NOT_KNOWN
    low, high = (NOT_KNOWN if end is None else f"{end:{form}}" for end in (figure.low, figure.high))
    return f"{figure.value:{form}} ({low} to {high})"


@dataclass(frozen=True)
class Line:
    """A curve in a picture: the points of its line and band, and the position of its name."""

    name: str
    colour: str
    line: str
    band: str
    y: float


@dataclass(frozen=True)
class CurvesPicture:
    """A picture of survival curves with bands, and the ticks of its axes."""

    lines: Sequence[Line]
    ticks: Sequence[tuple[float, str]]
    shares: Sequence[tuple[float, str]]
    width: float = WIDTH
    height: float = HEIGHT
    left: float = LEFT
    right: float = WIDTH - RIGHT
    bottom: float = HEIGHT - BOTTOM


def picture_of_curves(curves: Sequence[Curve]) -> CurvesPicture | None:
    """Draw the survival curves of groups, or the overall curve without groups; None if none has values."""
    groups = [curve for curve in curves if curve.group is not None]
    shown = [each for each in groups or curves if each.points and each.points[0].survival is not None]
    if not shown:
        return None
    ends = [point.end for point in shown[0].points]
    lines = []
    for number, curve in enumerate(shown):
        known = [point for point in curve.points if point.survival is not None]
        places = [(point.end, point.survival or 0.0) for point in known]
        low = [(point.end, point.low or 0.0) for point in known]
        high = [(point.end, point.high or 0.0) for point in known]
        band = [*_placed([(0.0, 1.0), *high], ends[-1]), *_placed([(0.0, 1.0), *low], ends[-1])[::-1]]
        lines.append(
            Line(
                name="all" if curve.group is None else curve.group,
                colour=COLOURS[number % len(COLOURS)],
                line=" ".join(_placed([(0.0, 1.0), *places], ends[-1])),
                band=" ".join(band),
                y=TOP + 16 * (number + 1),
            )
        )
    every = max(1, len(ends) // 6)
    ticks = [(_across(end, ends[-1]), f"{end:.6g}") for end in (0.0, *ends[every - 1 :: every])]
    return CurvesPicture(lines, ticks, [(_down(share), f"{share:g}") for share in (0, 0.25, 0.5, 0.75, 1)])


def _placed(points: Sequence[tuple[float, float]], horizon: float) -> list[str]:
    return [f"{_across(end, horizon):.1f},{_down(share):.1f}" for end, share in points]


def _across(end: float, horizon: float) -> float:
    return round(LEFT + (WIDTH - LEFT - RIGHT) * end / horizon, 1)


def _down(share: float) -> float:
    return round(TOP + (HEIGHT - TOP - BOTTOM) * (1 - share), 1)
