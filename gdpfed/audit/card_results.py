"""Compute what a model card must say about results: metrics, a vote on settings, held-out records."""

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from gdpfed.audit.card_forms import Expected, Fields, anything
from gdpfed.audit.counted_metrics import BINS
from gdpfed.audit.once_checks import VOTED
from gdpfed.audit.run_files import RunFiles
from gdpfed.audit.tolerances import SAME_FIGURE
from gdpfed.audit.update_norms import norm_fields, norm_rows, norm_sections
from gdpfed.runs.file_formats import AT_CHANCE_FILE

ABSENT, TOO_FEW = "–", "too few"
FEWEST = 30
"""A model card shows no metric of fewer examples or records than this."""
NORMAL_QUANTILE = 1.959963984540054


def result_sections(files: RunFiles) -> set[str]:
    """Return the conditions that a run's results meet, to select the model card lines that apply."""
    holds = {"vote"} if "vote" in files.plan else set()
    holds |= {"voted" if files.vote is not None else "not-voted"}
    if files.held_out is not None:
        holds |= {"counted", "by-client"} if files.held_out.get("parties") else {"counted"}
    holds |= {"chosen"} if chosen_figures(files) else set()
    return holds | norm_sections(files) | ({"parts"} if files.parts is not None and files.rounds else set())


def chosen_figures(files: RunFiles) -> Mapping[str, Any]:
    """Return accuracy and metrics of the released model if it is not the last round's; else {}."""
    end = files.end or {}
    figures = {name: end.get(name) for name in ("accuracy", "metrics")}
    return figures if figures["accuracy"] is not None or figures["metrics"] else {}


def result_fields(files: RunFiles) -> Fields:
    """Return the values that the model card's lines about results must state."""
    vote, counted = files.vote or {}, files.held_out or {}
    metrics = counted.get("metrics", {})
    stddev = counted.get("noise_stddev", 0.0)
    # Where rates are summed after a secret draw, it is not said how many clients counted.
    plan, counters = files.plan, f"{counted.get('clients')} clients"
    events = [charge["event"] for group in plan["groups"] for charge in group["charges"]]
    drawn = any(each["kind"] == "sampled_gaussian" and each["sampling_rate"] < 1 for each in events)
    secret = plan["private"] and drawn and not files.config["run"]["show_cohorts"]
    if secret and counted.get("weighs") == "clients":
        counters = "the clients of the last round"
    cost = "Nothing was promised for them."
    if "held_out" in plan:
        paid = f"{plan['held_out']['epsilon']:.3g}"
        cost = f"A record that is held out pays for this alone: epsilon {paid}."
    elif plan["private"]:
        cost = "It is paid for as the last round of the budgets below."
    parties: Sequence[Mapping[str, Any]] = (files.parts or {}).get("parties", ())
    return {
        **norm_fields(files),
        "voters": str(vote.get("clients")),
        "options": str(len(vote.get("settings", ()))),
        "vote_noise": f"{vote.get('noise_stddev', 0.0):.3g}",
        "vote_epsilon": f"{files.plan.get('vote', {}).get('epsilon', 0.0):.3g}",
        "counts_there": "the sum stands below" if counted else "there is no sum of their counts",
        "counted_clients": counters,
        "weighs": str(counted.get("weighs")),
        "counted_noise": f"{stddev:.3g}",
        "own_noise": f"{stddev / math.sqrt(counted.get('clients', 1)):.3g}",
        "counted_names": " | ".join(metrics),
        "left": "" if files.config["run"]["evaluation"] == "both" else "No record left its client. ",
        "cost": cost,
        "part_metrics": anything,
        "rules": "---:|" * (len(parties[0]["metrics"]) if parties else 0),
        "counted_rules": "---|" * len(metrics),
        "cases": "" if counted.get("weighs") != "records" else f", about {_cases(counted['counts'])} records",
    }


def result_rows(files: RunFiles) -> Mapping[str, list[Fields]]:
    """Return what the rows of the model card's tables of results must state, by the row's name."""
    counted, parts = files.held_out or {}, files.parts or {}
    results: list[Fields] = [{"metric": "accuracy", "after": "", "result": "not measured yet"}]
    if files.rounds:
        shown, after = _shown(files)
        cells = [_metric_cell(value) for value in _metrics(shown).values()]
        results = [{"metric": anything, "after": after, "result": each} for each in cells]
    vote, votes = files.vote, list[Fields]()
    if vote is not None:
        settings: Sequence[Sequence[float]] = vote["settings"]
        asked = [len(set(values)) > 1 for values in zip(*settings, strict=True)]
        # Most votes first; ties keep the order of the settings.
        for number in sorted(range(len(settings)), key=lambda each: vote["votes"][each], reverse=True):
            told = [
                f"training.{key}={value:g}"
                for key, value, is_told in zip(VOTED, settings[number], asked, strict=True)
                if is_told
            ]
            votes.append({"setting": ", ".join(told), "votes": f"{vote['votes'][number]:.1f}"})
    return {
        "result": results,
        "vote": votes,
        "norm": norm_rows(files),
        "counted_metric": [
            {"counted_name": name, "counted_value": _in_percent(each)}
            for name, each in counted.get("metrics", {}).items()
        ],
        "counted_client": [
            {
                "counted_party": files.parties[each["client"]]
                if files.parties
                else f"client {each['client']}",
                "counted_cases": _cases(each["counts"]),
                "counted_values": " | ".join(
                    _in_percent(metric) if _number(each["counts"]) >= FEWEST else TOO_FEW
                    for metric in each["metrics"].values()
                ),
            }
            for each in counted.get("parties", ())
        ],
        "part": [
            {
                "part": each["name"],
                "examples": str(each["examples"]),
                "part_values": _part_cells(each["metrics"], each["intervals"], each["examples"]),
            }
            for each in (*parts.get("parties", ()), *parts.get("budgets", ()))
        ],
        "at_chance": _chance_rows(files),
    }


def _number(counts: Sequence[float]) -> float:
    """Return the number of records that noised counts imply: the sum of all cells of the confusion matrix."""
    return math.fsum(counts[: len(counts) - 2 * BINS])


def _cases(counts: Sequence[float]) -> str:
    return f"{max(0.0, _number(counts)):.0f}"


def _chance_rows(files: RunFiles) -> list[Fields]:
    """Return what the model card must say if accuracy is at chance level; return [] if it is not."""
    found = files.chance
    if found is None:
        return []
    value = _accuracy(files)
    if files.config["run"]["evaluation"] == "nodes":
        counted = files.held_out or {}
        of_counts = counted.get("metrics", {}).get("accuracy", {})
        low, high = (float(of_counts.get(key) or 0.0) for key in ("low", "high"))
        tested = f"about {_cases(counted['counts'])} records that clients hold out, by noised counts"
    else:
        # Without an accuracy, or a number of trials, the server tested nothing: no card can say what follows.
        tested = str(found["tested"])
        first = tested.partition(" ")[0]
        trials = int(first) if first.isdecimal() else 0
        low, high = wilson(value, trials) if trials else (0.0, 0.0)
    causes = "; ".join(found["causes"])
    return [
        {
            "chance_accuracy": f"{100 * value:.1f}",
            "chance_between": f"{100 * low:.1f} to {100 * high:.1f}",
            "tested": tested,
            "answer": anything,
            "chance_share": f"{100 * max(float(found['share']), low):.1f}",
            "causes": causes or anything,
        }
    ]


def _accuracy(files: RunFiles) -> float:
    """Return the accuracy of the released model: of the log, or of counts on held-out records; 0 without."""
    if files.config["run"]["evaluation"] == "nodes":
        metrics = (files.held_out or {}).get("metrics", {})
        return float(metrics.get("accuracy", {}).get("value") or 0.0)
    return float(_last(files)["accuracy"] or 0.0)


def check_chance(files: RunFiles) -> Iterator[str]:
    """Check that a result at chance has the accuracy of the log, or of the counts on held-out records."""
    if files.chance is None:
        return
    stated, value = float(files.chance["accuracy"]), _accuracy(files) if files.rounds else 0.0
    if not math.isclose(stated, value, rel_tol=SAME_FIGURE, abs_tol=SAME_FIGURE):
        yield f"{AT_CHANCE_FILE} has an accuracy of {stated:.6g}, where {value:.6g} was measured"


def wilson(share: float, number: int) -> tuple[float, float]:
    """Compute both ends of the Wilson confidence interval for a proportion `share` of `number` trials."""
    z = NORMAL_QUANTILE**2 / number
    middle, half = (share + z / 2) / (1 + z), math.sqrt(z * share * (1 - share) + z**2 / 4) / (1 + z)
    return max(0.0, middle - half), min(1.0, middle + half)


def _last(files: RunFiles) -> Mapping[str, Any]:
    """Return the last round's log entry, in which accuracy and metrics are those of the released model."""
    return {**files.rounds[-1], **chosen_figures(files)}


def _shown(files: RunFiles) -> tuple[Mapping[str, Any], str]:
    """Return the log entry whose metrics the model card has, and what the card says of its round.

    They are those of the released model. If it was not tested, as where an extension ended the run between
    two tests, they are those of the last round that was.
    """
    last = _last(files)
    tested = [each for each in files.rounds if next(iter(_metrics(each).values())) is not None]
    if chosen_figures(files) or not tested or tested[-1] is files.rounds[-1]:
        return last, ""
    return tested[-1], f" after round {tested[-1]['round']}"


def _metrics(entry: Mapping[str, Any]) -> Mapping[str, float | None]:
    return entry.get("metrics") or {"accuracy": entry["accuracy"]}


def _metric_cell(value: float | None) -> Expected:
    """Return what a cell must say of a metric: per cent or a plain number, or a dash if it is unknown."""
    if value is None or math.isnan(value):
        return ABSENT
    texts = {f"{100 * value:.1f} %", f"{value:.4g}"}
    return lambda text: text in texts


def _in_percent(metric: Mapping[str, float | None]) -> str:
    value, low, high = (metric[key] for key in ("value", "low", "high"))
    if value is None:
        return "not defined under this noise"
    return f"{100 * value:.1f} % ({100 * (low or 0):.1f} to {100 * (high or 0):.1f})"


def _part_cells(
    metrics: Mapping[str, float | None], intervals: Mapping[str, Sequence[float] | None], examples: int
) -> Expected:
    wanted = [_metric_texts(name, value, intervals.get(name), examples) for name, value in metrics.items()]

    def agrees(text: str) -> bool:
        cells = text.split(" | ")
        return len(cells) == len(wanted) and all(
            cell in texts for texts, cell in zip(wanted, cells, strict=True)
        )

    return agrees


def _metric_texts(
    name: str, value: float | None, ends: Sequence[float] | None, examples: int
) -> Collection[str]:
    """Return all texts that correctly state a metric and its interval; accuracy's interval is recomputed."""
    if examples < FEWEST:
        return {TOO_FEW}
    if value is None or math.isnan(value):
        return {ABSENT}
    right = value * examples
    if name == "accuracy" and 0 < value < 1 and math.isclose(right, round(right), abs_tol=1e-6):
        ends = wilson(value, examples)
    if ends is None:
        return {f"{100 * value:.1f} %", f"{value:.4g}"}
    low, high = ends
    return {
        f"{100 * value:.1f} % ({100 * low:.1f} to {100 * high:.1f})",
        f"{value:.4g} ({low:.4g} to {high:.4g})",
    }
