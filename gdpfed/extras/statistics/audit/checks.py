"""Audits private statistics: recomputes sensitivity from the declared columns, and results from the counts.

The released counts are the model's parameters, in the file of its weights. What is counted follows from the
saved declaration and the configuration alone. So every figure of statistics.json is computed again, and so is
how far one record moves the sum: by 1 in one cell of every block, which are B, so by sqrt(B).
"""

import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gdpfed.audit.rules import rule_of
from gdpfed.audit.run_files import FORMAT_VERSION, RunFiles
from gdpfed.audit.tolerances import SAME_FIGURE
from gdpfed.errors import AuditError, words_of
from gdpfed.extras.statistics.audit.curves import curves_of

METHODS = {"record_statistics": "record", "client_statistics": "client"}
RESULT, WEIGHTS = "statistics.json", "model/weights.safetensors"
Z = 1.96
# Of the bound on what one may move, for rounding to the grid of the sum.
SLACK = 1 / 64
TIMES = "\n"
"""Under which the cells of times to an event are kept, which is the name of no column."""
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class _Column:
    """A declared column: its cells (values or bins), the bins' edges, and whether values may be missing."""

    name: str
    cells: tuple[str, ...]
    ends: tuple[float, ...]
    may_miss: bool


def check_statistics(directory: Path, files: RunFiles) -> Iterator[str]:
    """Yield one line for each contradiction in the statistics of a run."""
    method, there = files.config["method"], (directory / RESULT).is_file()
    ended = (directory / WEIGHTS).is_file() and bool(files.rounds) and not files.rounds[0]["failures"]
    if not there:
        if ended:
            yield f"the run has a sum, and {RESULT} is missing"
        return
    if files.columns is None or not ended:
        yield f"{RESULT} has statistics of a run without a sum, or without declared columns"
        return
    path = directory / RESULT
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise AuditError(f"{path} cannot be read: {words_of(error)}; restore it from a copy") from None
    if not isinstance(found, dict) or found.get("version") != FORMAT_VERSION:
        raise AuditError(
            f"{path} has another format version than {FORMAT_VERSION}: use the gdpfed that wrote it"
        )
    parties = files.config["dataset"]["num_clients"] if method.get("by_party") else 0
    blocks = list(_blocks(_columns(files.columns, method), method, parties))
    yield from _check_sum(files, found, blocks)
    # The counts are read from a safetensors file without that library.
    data = (directory / WEIGHTS).read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    begin, end = json.loads(data[8 : 8 + length])["counts"]["data_offsets"]
    counts = np.frombuffer(data[8 + length + begin : 8 + length + end], dtype="<f4").astype(np.float64)
    sizes = [math.prod(shape) for _, shape in blocks]
    if len(counts) != sum(sizes):
        yield f"{WEIGHTS} has {len(counts)} counts, and {sum(sizes)} cells are asked for"
        return
    pieces = np.split(counts, np.cumsum(sizes)[:-1])
    parts = [piece.reshape(shape) for piece, (_, shape) in zip(pieces, blocks, strict=True)]
    yield from _check_figures(found, blocks, parts, float(method["minimum_count"]))


def _columns(declared: Mapping[str, Any], method: Mapping[str, Any]) -> dict[str, _Column]:
    """Return all input and label columns that the YAML file of columns declares, by name."""
    found = {}
    for name, said in declared.get("numeric", {}).items():
        low, high = said["range"] if isinstance(said, dict) else said
        found[name] = _numbers(name, low, high, method)
    for name, said in declared.get("categorical", {}).items():
        values = said["values"] if isinstance(said, dict) else said
        found[name] = _Column(name, (*map(str, values), "missing"), (), may_miss=True)
    label = declared["label"]
    if "columns" in label:
        for name, values in label["columns"].items():
            found[name] = _Column(name, tuple(map(str, values)), (), may_miss=False)
    elif "time" in label:
        event, ends = label["event"], tuple(map(float, label["edges"]))
        found[label["time"]] = _numbers(label["time"], 0.0, ends[-1], method)
        words = (*map(str, event["censored"]), *map(str, event["happened"]))
        found[event["column"]] = _Column(event["column"], words, (), may_miss=False)
        cells = [f"event by {end:.10g}" for end in ends] + [f"censored {end:.10g}" for end in (0.0, *ends)]
        found[TIMES] = _Column(TIMES, tuple(cells), ends, may_miss=False)
    elif "range" in label:
        low, high = label["range"]
        found[label["column"]] = _numbers(label["column"], low, high, method)
    else:
        found[label["column"]] = _Column(
            label["column"], tuple(map(str, label["classes"])), (), may_miss=False
        )
    return found


def _numbers(name: str, low: float, high: float, method: Mapping[str, Any]) -> _Column:
    if method["spacing"] == "even":
        width = (high - low) / method["bins"]
        ends = [low + width * number for number in range(method["bins"])] + [high]
    else:
        top = math.floor(math.log10(max(abs(low), abs(high))))
        steps = [digit * 10.0**power for power in range(top - 6, top + 1) for digit in (1, 2, 5)]
        ends = [
            low,
            *sorted(each for each in {0.0, *steps, *(-step for step in steps)} if low < each < high),
            high,
        ]
    bins = [f"{first:.6g} to {last:.6g}" for first, last in pairwise(ends)]
    return _Column(name, ("below", *bins, "above", "missing"), tuple(map(float, ends)), may_miss=True)


def _blocks(
    columns: Mapping[str, _Column], method: Mapping[str, Any], parties: int
) -> Iterator[tuple[tuple[str, _Column, _Column | None], tuple[int, ...]]]:
    """Yield the columns and shape of each table of counts: over one column, by group, or over two columns."""
    by = method["by"]
    if method["survival"]:
        followed, groups = columns[TIMES], columns[by] if by is not None else None
        rows = 1 if groups is None else len(groups.cells)
        yield ("survival", followed, groups), (rows, len(followed.cells))
        return
    own = _Column("party", tuple(f"party {number}" for number in range(parties)), (), may_miss=False)
    if by is not None:
        yield ("column", columns[by], None), (len(columns[by].cells),)
    for name in method["columns"]:
        first = columns[name]
        if parties:
            yield ("groups", first, own), (parties, len(first.cells))
        elif by is None:
            yield ("column", first, None), (len(first.cells),)
        elif name != by:
            yield ("groups", first, columns[by]), (len(columns[by].cells), len(first.cells))
    for rows, across in method["crossed"] or ():
        first, second = columns[rows], columns[across]
        yield ("crossed", first, second), (len(first.cells), len(second.cells))


def _check_sum(files: RunFiles, found: Mapping[str, Any], blocks: Sequence[Any]) -> Iterator[str]:
    """Check the sensitivity, noise and privacy cost of the sum of counts against the plan and the log."""
    plan, entry, moves = files.plan, files.rounds[0], math.sqrt(len(blocks))
    unit = METHODS[files.config["method"]["name"]]
    group = plan["groups"][0]
    if plan["unit"] != unit or plan["num_rounds"] != 1 or len(plan["groups"]) != 1:
        yield "plan.json is not that of one sum of statistics over one group of clients"
        return
    if unit == "record":
        steps = group["records"]
        bound, rates = steps["clipping_norm"], {each["batch_rate"] for each in steps["groups"]}
        if rates != {1.0}:
            yield f"plan.json draws records at rates {sorted(rates)}, and statistics count each of them"
    else:
        bound = min(charge["event"]["clipping_norm"] for charge in group["charges"])
    if not bound >= moves * (1 + SLACK) * (1 - SAME_FIGURE):
        yield (
            f"one {unit} moves {len(blocks)} blocks by {moves:.6g}, and plan.json bounds it by {bound:.6g}, "
            "which leaves nothing for rounding"
        )
    shares = entry.get("noise_shares") or []
    carried = shares[0][1] * math.sqrt(entry["survivors"][0]) if shares else entry["noise_stddevs"][0]
    (audited, *_) = rule_of(files).groups()
    words = plan.get("record_is", "record") + "s" if unit == "record" else "clients"
    for name, value in (
        ("counted", words),
        ("clients", entry["survivors"][0]),
        ("moves", moves),
        ("noise_stddev", carried),
        ("epsilon", audited.planned),
        ("delta", plan["delta"]),
        ("minimum_count", float(files.config["method"]["minimum_count"])),
    ):
        if not _same(found[name], value):
            yield f"{RESULT} has {name} {found[name]}, where {value} follows"


def _check_figures(
    found: Mapping[str, Any], blocks: Sequence[Any], parts: Sequence[Floats], least: float
) -> Iterator[str]:
    """Check that every shown count and statistic follows from the released counts and their noise."""
    noise = found["noise_stddev"]
    columns, tables = list[dict[str, Any]](), list[dict[str, Any]]()
    curves, test = list[dict[str, Any]](), None
    for ((kind, first, second), _), part in zip(blocks, parts, strict=True):
        if kind == "survival":
            curves, test = curves_of(first.ends, second.cells if second else (), part, noise, least)
        elif kind == "column":
            columns.append(_column(first, None, part, noise, least))
        elif kind == "groups":
            columns.append(_column(first, None, part.sum(axis=0), noise * math.sqrt(len(part)), least))
            names = zip(second.cells, part, strict=True)
            columns += [_column(first, name, row, noise, least) for name, row in names]
        else:
            shown = [[_least(count, least) for count in row] for row in part.tolist()]
            tables.append(
                {
                    "rows": first.name,
                    "columns": second.name,
                    "row_cells": list(first.cells),
                    "column_cells": list(second.cells),
                    "counts": shown,
                }
            )
    inverse = [1 / part.size for part in parts]
    whole = sum(weight * part.sum() for weight, part in zip(inverse, parts, strict=True)) / sum(inverse)
    computed: dict[str, Any] = {
        "n": _about(whole, Z * noise / math.sqrt(sum(inverse))),
        "columns": columns,
        "tables": tables,
    }
    computed |= {"curves": curves, "log_rank": test}
    # Files from before there were curves have none.
    known = {"curves": [], "log_rank": None, **found}
    for key, value in computed.items():
        yield from _differences(known[key], value, f"{RESULT}: {key}")


def _column(column: _Column, group: str | None, counts: Floats, noise: float, least: float) -> dict[str, Any]:
    present = counts[:-1] if column.may_miss else counts
    known = _enough(_about(present.sum(), Z * noise * math.sqrt(len(present))), least)
    figures: dict[str, Any] = {}
    if column.ends:
        computed = _moments_and_quantiles(column.ends, present, noise)
        figures = computed if known["value"] is not None else dict.fromkeys(computed, _about(None))
    missing = _enough(_about(counts[-1], Z * noise), least) if column.may_miss else None
    return {
        "name": column.name,
        "group": group,
        "cells": list(column.cells),
        "edges": list(column.ends),
        "counts": [_least(count, least) for count in counts.tolist()],
        "noise_stddev": noise,
        "n": known,
        "missing": missing,
        "figures": figures,
    }


def _moments_and_quantiles(ends: Sequence[float], present: Floats, noise: float) -> dict[str, Any]:
    """Recompute mean, standard deviation and quantiles of a column, with intervals for the noise."""
    points = np.array([ends[0], *((a + b) / 2 for a, b in pairwise(ends)), ends[-1]])
    widths = np.array([0.0, *(b - a for a, b in pairwise(ends)), 0.0])
    whole, number = float(present.sum()), len(present)
    names = [f"q{part:g}" for part in (0.01, 0.25, 0.5, 0.75, 0.99)]
    if not whole > Z * noise * math.sqrt(number):
        return dict.fromkeys(["mean", "sd", *names], _about(None))
    mean = min(max(float(points @ present) / whole, ends[0]), ends[-1])
    apart = (points - mean) ** 2
    variance = float((apart - widths**2 / 12) @ present) / whole
    off = Z * noise * math.sqrt(apart.sum()) / whole
    found = {"mean": _about(mean, off), "sd": _about(None)}
    if variance > 0:
        spread = math.sqrt(variance)
        sampled = Z * spread / math.sqrt(whole)
        wide = Z * noise * math.sqrt(((apart - variance) ** 2).sum()) / (2 * spread * whole)
        found = {
            "mean": _about(mean, off, sampled),
            "sd": _about(spread, wide, sampled / math.sqrt(2)) | {"low": max(0.0, spread - wide)},
        }
    for name, part in zip(names, (0.01, 0.25, 0.5, 0.75, 0.99), strict=True):
        heights = np.cumsum(present)[:-1] - part * whole
        before = np.arange(1, number)
        loose = Z * noise * np.sqrt((1 - part) ** 2 * before + part**2 * (number - before))
        last = -_first_zero([-end for end in ends][::-1], (loose - heights)[::-1])
        found[name] = {
            "value": _first_zero(ends, heights),
            "low": _first_zero(ends, heights + loose),
            "high": last,
            "sampling": None,
        }
    return found


def _first_zero(ends: Sequence[float], heights: Floats) -> float:
    """Return where a piecewise linear curve, `heights` at `ends`, first reaches 0; if never, the last end."""
    for at, height in enumerate(heights):
        if height >= 0:
            if at == 0:
                return float(ends[0])
            before = heights[at - 1]
            return float(ends[at - 1] + before / (before - height) * (ends[at] - ends[at - 1]))
    return float(ends[-1])


def _about(value: float | None, off: float = 0.0, sampled: float | None = None) -> dict[str, Any]:
    if value is None:
        return {"value": None, "low": None, "high": None, "sampling": None}
    return {"value": float(value), "low": float(value) - off, "high": float(value) + off, "sampling": sampled}


def _enough(figure: dict[str, Any], least: float) -> dict[str, Any]:
    return figure if least == 0 or figure["value"] >= least else _about(None)


def _least(count: float, least: float) -> float | None:
    return count if least == 0 or count >= least else None


def _same(said: object, computed: object) -> bool:
    if isinstance(said, int | float) and isinstance(computed, int | float):
        return math.isclose(said, computed, rel_tol=SAME_FIGURE, abs_tol=SAME_FIGURE)
    return said == computed


def _differences(said: object, computed: object, where: str) -> Iterator[str]:
    """Yield one line for the first difference between two nested values."""
    if isinstance(computed, dict) and isinstance(said, dict) and said.keys() == computed.keys():
        pairs = [(said[key], value, f"{where} {key}") for key, value in computed.items()]
    elif isinstance(computed, list) and isinstance(said, list) and len(said) == len(computed):
        pairs = [
            (a, b, f"{where} {number}") for number, (a, b) in enumerate(zip(said, computed, strict=True), 1)
        ]
    else:
        if not _same(said, computed):
            yield f"{where} is {said}, where {computed} follows from the released counts"
        return
    for pair in pairs:
        for line in _differences(*pair):
            yield line
            return
