"""What a model card must say of results: metrics of the last round, a vote, held-out records, parties."""

import math
from collections.abc import Mapping, Sequence
from typing import Any

from gdpfed.audit.card_forms import Expected, Fields, anything
from gdpfed.audit.once_checks import VOTED
from gdpfed.audit.run_files import RunFiles

ABSENT = "–"


def result_sections(files: RunFiles) -> set[str]:
    """The conditions of card_lines.txt that results make true."""
    holds = {"vote"} if "vote" in files.plan else set()
    holds |= {"voted" if files.vote is not None else "not-voted"}
    if files.held_out is not None:
        holds |= {"counted", "by-client"} if files.held_out.get("parties") else {"counted"}
    return holds | ({"parts"} if files.parts is not None and files.rounds else set())


def result_fields(files: RunFiles) -> Fields:
    """What is expected of the fields of lines about results."""
    vote, counted = files.vote or {}, files.held_out or {}
    metrics, own = counted.get("metrics", {}), counted.get("parties", [])
    stddev = counted.get("noise_stddev", 0.0)
    return {
        "voters": str(vote.get("clients")),
        "options": str(len(vote.get("settings", ()))),
        "vote_noise": f"{vote.get('noise_stddev', 0.0):.3g}",
        "vote_epsilon": f"{files.plan.get('vote', {}).get('epsilon', 0.0):.3g}",
        "counted_clients": str(counted.get("clients")),
        "weighs": str(counted.get("weighs")),
        "counted_noise": f"{stddev:.3g}",
        "own_noise": f"{stddev / math.sqrt(counted.get('clients', 1)):.3g}",
        "counted_names": " | ".join(metrics),
        "left": "" if files.config["run"]["evaluation"] == "both" else "No record left its client. ",
        "cost": _cost(files.plan),
        "part_metrics": anything,
        "rules": lambda text: set(text) <= set("-:|") and (not own or text == "---|" * len(metrics)),
    }


def _cost(plan: Mapping[str, Any]) -> str:
    if "held_out" in plan:
        paid = f"{plan['held_out']['epsilon']:.3g}"
        return f"A record that is held out pays for this alone: epsilon {paid}."
    if plan["private"]:
        return "It is paid for as the last round of the budgets below."
    return "Nothing was promised for them."


def result_rows(files: RunFiles) -> Mapping[str, list[Fields]]:
    """What is expected of rows about results, by the name of the form."""
    counted = files.held_out or {}
    return {
        "result": _results(files),
        "vote": _votes(files.vote),
        "counted_metric": [
            {"counted_name": name, "counted_value": _in_percent(each)}
            for name, each in counted.get("metrics", {}).items()
        ],
        "counted_client": [
            {
                "counted_party": files.parties[each["client"]]
                if files.parties
                else f"client {each['client']}",
                "counted_values": " | ".join(map(_in_percent, each["metrics"].values())),
            }
            for each in counted.get("parties", ())
        ],
        "part": _parts(files.parts or {}),
    }


def _results(files: RunFiles) -> list[Fields]:
    if not files.rounds:
        return [{"metric": "accuracy", "result": "not measured yet"}]
    last = files.rounds[-1]
    found = last.get("metrics") or {"accuracy": last["accuracy"]}
    return [{"metric": anything, "result": _shown(value)} for value in found.values()]


def _shown(value: float | None) -> Expected:
    """A metric is in per cent or on its own scale; which of them it is, no file of a run says."""
    if value is None or math.isnan(value):
        return ABSENT
    texts = {f"{100 * value:.1f} %", f"{value:.4g}"}
    return lambda text: text in texts


def _votes(vote: Mapping[str, Any] | None) -> list[Fields]:
    """The settings, that with the most votes first; of equal ones the later."""
    if vote is None:
        return []
    settings: Sequence[Sequence[float]] = vote["settings"]
    asked = [len(set(values)) > 1 for values in zip(*settings, strict=True)]
    order = sorted(range(len(settings)), key=lambda number: vote["votes"][number], reverse=True)
    return [
        {
            "setting": ", ".join(
                f"training.{key}={value:g}"
                for key, value, told in zip(VOTED, settings[number], asked, strict=True)
                if told
            ),
            "votes": f"{vote['votes'][number]:.1f}",
        }
        for number in order
    ]


def _in_percent(metric: Mapping[str, float | None]) -> str:
    value, low, high = (metric[key] for key in ("value", "low", "high"))
    if value is None:
        return "not defined under this noise"
    return f"{100 * value:.1f} % ({100 * (low or 0):.1f} to {100 * (high or 0):.1f})"


def _parts(parts: Mapping[str, Any]) -> list[Fields]:
    return [
        {"part": each["name"], "examples": str(each["examples"]), "part_values": _cells(each["metrics"])}
        for each in (*parts.get("parties", ()), *parts.get("budgets", ()))
    ]


def _cells(metrics: Mapping[str, float | None]) -> Expected:
    wanted = [_shown(value) for value in metrics.values()]

    def agrees(text: str) -> bool:
        cells = text.split(" | ")
        return len(cells) == len(wanted) and all(
            each(cell) if callable(each) else each == cell for each, cell in zip(wanted, cells, strict=True)
        )

    return agrees
