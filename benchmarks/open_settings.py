"""Trains the GDPFed paper's methods under several values of the settings that it leaves open."""

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.progress import track

import gdpfed
from benchmarks.harness import CONSOLE, publish, read_options
from benchmarks.readings import cell, readings_table
from conf.load import load
from gdpfed.privacy.planning.groups import paper_delta
from gdpfed.report.finished_run import FinishedRun


@dataclass(frozen=True)
class PaperSetting:
    """What the GDPFed paper says of one data set, and readings of what it does not say.

    Attributes:
        data: the data set's name in the table's title.
        words: the settings that the paper states.
        printed: its accuracies in percent, by method.
        readings: the settings that it leaves open, by the reading's name.
    """

    data: str
    words: tuple[str, ...]
    printed: Mapping[str, str]
    readings: Mapping[str, tuple[str, ...]]


def show_readings(doc: str | None, paper: PaperSetting) -> None:
    """Train each method with each reading that the command line names; show the accuracies.

    `doc`: the benchmark's description, which --help shows.
    """
    methods = (*paper.printed, "gdpfed_star")
    options = read_options(doc, overrides=True, seeds=1, only=tuple(paper.readings), methods=methods)
    cells = [(name, method) for name in options.only for method in options.methods]
    found: dict[tuple[str, str], list[FinishedRun]] = {}
    for name, method in track(cells, "cells", console=CONSOLE):
        words = [*paper.words, f"method={method}", *paper.readings[name], *options.overrides]
        found[name, method] = [_trained([*words, f"run.seed={seed}"]) for seed in range(options.seeds)]
        CONSOLE.print(f"{name}, {method}: {cell(found[name, method])} %", soft_wrap=True)
    publish([readings_table(paper.data, paper.printed, found)], options.write)


def _trained(settings: Sequence[str]) -> FinishedRun:
    delta = paper_delta(load(settings).dataset.num_clients)
    with tempfile.TemporaryDirectory() as folder:
        return gdpfed.simulate(
            *settings,
            f"privacy.delta={delta!r}",
            f"run.directory={Path(folder) / 'run'}",
            observe=lambda record: None,
        )
