"""Name the parts of a run that a Python program supplied; no file holds them, so no audit can check them."""

from collections.abc import Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any

GIVEN = "python."
"""The prefix of the names of objects that a Python program supplied to a run."""
OF_PROGRAMS = {"dataset": ("python", "flower_app"), "model": ("flower_arrays",)}
"""Data sets and models that only a program supplies and that no file holds."""

OWN_WORKS = (
    *("update", "noised_update", "dp_sgd", "gradient_sum", "convex_steps", "window_steps"),
    *("held_out_counts", "held_out_rates", "vote", "vote_by_rounds", "norm_histogram"),
    *("client_statistics", "record_statistics"),
)
"""Kinds of local computation that are built in, so that they need no installed package."""


UPDATES = ("update", "client_statistics")
"""Kinds of local computation whose result is bounded as a whole, whatever it contains."""


def is_of_package(work: str) -> bool:
    """Whether an installed package defines this kind of local computation, rather than gdpfed itself."""
    return work not in OWN_WORKS and bool(entry_points(group="gdpfed.works", name=work))


def unseen_objects(config: Mapping[str, Any]) -> str:
    """Name the Python objects that a program gave to a run; "" if there are none.

    `config`: of the run, by section and key.
    """
    return ", ".join(f"the {kind} {name}" for kind, name in _given(config))


def not_computed(config: Mapping[str, Any], plan: Mapping[str, Any]) -> tuple[str, ...]:
    """Return one line for each thing that the audit could not check from the run's files."""
    works = [work for work in plan["works"] if is_of_package(work)]
    extensions = [name for kind, name in _given(config) if kind == "extension"]
    lines = []
    if unseen := unseen_objects(config):
        lines.append(
            f"whether the run computed with what it names: {unseen} came from a program, and no file of the "
            "run holds them. The figures follow from plan, ledger and log, whatever these are; nobody can "
            "repeat or resume the run from its files alone"
        )
    if extensions:
        lines.append(
            f"what {', '.join(extensions)} did beside the rounds: it is code of the server's, which sees "
            "what the server sees"
        )
    if works:
        lines.append(
            f"what clients computed as {', '.join(works)}: a package has it. The figures hold for whatever "
            "is clipped and noised as an update is, and no file of the run shows what was"
        )
    return tuple(lines)


def _given(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    data = config["dataset"]
    named = [
        ("data set", data["name"], OF_PROGRAMS["dataset"]),
        ("model", data["model"], OF_PROGRAMS["model"]),
    ]
    named += [(kind, data.get(kind), ()) for kind in ("loss", "partition")]
    named += [("metric", name, ()) for name in data.get("metrics") or ()]
    named += [("extension", name, ()) for name in config["run"].get("extensions") or {}]
    for kind, name, others in named:
        if name in others or str(name).startswith(GIVEN):
            yield kind, str(name)
