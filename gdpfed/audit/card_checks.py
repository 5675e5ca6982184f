"""Check a run's model card: each line must be allowed, and its numbers must follow from the run's files.

The lines are in card_lines.txt, those of a system beside its rule. A line that is in none of them is found,
so whoever adds one to the card says here what it must be. What no file of a run has is not checked: the most
frequent class of the test examples, how many of their labels are beyond a range, which date and versions.
"""

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gdpfed.audit.card_forms import Expected, Fields, anything, compare, near, read_forms
from gdpfed.audit.card_results import result_fields, result_rows, result_sections
from gdpfed.audit.inference import Inference
from gdpfed.audit.mechanism_card import MechanismCard, spent_text
from gdpfed.audit.mechanisms import AUDIT_CARDS
from gdpfed.audit.plan_checks import default_delta
from gdpfed.audit.run_files import RunFiles
from gdpfed.audit.unseen_objects import unseen_objects

LINES = Path(__file__).with_name("card_lines.txt")
MOST_NAMED = 20
ONE = {"client": "participant", "record": "case", "person": "person"}
# How far an accuracy may be off before it is rounded up to whole per cents.
ROUNDED_WITHIN = 0.002
COUNTING = ("client_statistics", "record_statistics")
COUNTS_ALONE = " It predicts nothing: its numbers are noised counts, and statistics.json says what they tell."
DATE = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)
OF_PACKAGE = r"([\w.+!-]+|\(not installed as a package\))"
VERSIONS = re.compile(
    ", ".join(f"{name} {OF_PACKAGE}" for name in ("gdpfed", "flwr", "torch", "dp-accounting", "Python")),
    re.ASCII,
)
PROOFS = {
    "nothing was told",
    "exactly, of Gaussians",
    "by privacy loss distributions",
    "by Renyi divergences, which fixed_size sampling is bounded by, which is looser",
}


def check_card(files: RunFiles) -> Iterator[str]:
    """Yield one line for each error in a model card; yield nothing if the run has no model card yet."""
    if files.card is None:
        return
    promise = AUDIT_CARDS.get(files.plan["mechanism"])(files)
    forms = [form for path in (LINES, *promise.lines) for form in read_forms(path)]
    fields, rows = result_fields(files), result_rows(files)
    if files.plan["private"]:
        bounds = promise.inferences()
        fields = {**fields, **_fields(files, bounds), **promise.fields()}
        rows = {**rows, **_rows(files), **promise.rows(), "inference_row": _inference_rows(promise, bounds)}
        holds = _conditions(files) | {"private", *promise.holds()}
    else:
        fields, rows = {**fields, **_fields(files, {})}, {**rows, **_rows(files)}
        holds = _conditions(files) | {"open"}
    yield from compare(files.card, forms, holds, fields, rows)


def unnamed_on_card(files: RunFiles) -> Iterator[str]:
    """Yield a line if the card does not name loss, metrics and extensions, as those of earlier versions."""
    if files.card is not None and not re.search(r"^\* loss: ", files.card, re.MULTILINE):
        yield (
            "which loss, metrics and extensions the run had: config.yaml alone names them, since the card is "
            "one of an earlier version"
        )


def _conditions(files: RunFiles) -> set[str]:
    """Return which conditions of model card lines a run meets, apart from those of its privacy mechanism."""
    config, plan, holds = files.config, files.plan, set[str]()
    holds |= {"averaged"} if config["method"].get("average", "none") != "none" else set()
    if not _counts_alone(files):
        holds |= {"tested" if config["run"]["evaluation"] != "nodes" else "untested"}
    holds |= {"hidden" if plan["sums_hidden"] else "in-clear", config["secagg"]["mode"]}
    holds |= {"first-seen"} if config["secagg"]["identities"] == "first_seen" else set()
    holds |= {"large-delta"} if plan["private"] and plan["delta"] > default_delta(files) else set()
    holds |= {"unseen"} if unseen_objects(config) else set()
    data = config["dataset"]
    holds |= {"natural"} if (data["partition"], data.get("min_characters")) == ("natural", None) else set()
    holds |= {"columns", "who"} if files.columns is not None else set()
    holds |= {"named", "who"} if _names(files) else set()
    return holds | result_sections(files)


def _names(files: RunFiles) -> Sequence[str]:
    """Return the names of the data owners if the run's model card lists them; else an empty sequence."""
    return files.parties if len(files.parties) <= MOST_NAMED else ()


def _fields(files: RunFiles, bounds: Mapping[int, Sequence[Inference]]) -> Fields:
    config, plan = files.config, files.plan
    data = config["dataset"]
    factors = (
        f"{math.exp(min(each['epsilon'] or 0.0, 700)):.3g} (group {number})"
        for number, each in enumerate(plan["groups"])
    )
    names = _names(files)
    named = _listed(names) if names else f"{data['num_clients']} participants"
    one = ONE[plan.get("record_is", plan["unit"])]
    several = " A person with several cases is protected less than one case." if one == "case" else ""
    if plan["works"] != ["dp_sgd"] and not plan["sums_hidden"]:
        several += " Whoever ran the server saw what each one handed over, and from them nothing is hidden."
    return {
        "model": str(data["model"]),
        "dataset": str(data["name"]),
        "method": str(config["method"]["name"]),
        "loss": str(data.get("loss")),
        "metrics": ", ".join(data.get("metrics") or ()) or "the usual ones",
        "extensions": ", ".join(config["run"].get("extensions") or ()) or "none",
        "clients": str(data["num_clients"]),
        "partition": str(data["partition"]),
        "steps": _steps_text(files),
        "mode": str(config["secagg"]["mode"]),
        "rounds": _expected_rounds(files),
        "date": lambda text: DATE.fullmatch(text) is not None,
        "versions": lambda text: VERSIONS.fullmatch(text) is not None,
        "answer": anything,
        "share": anything,
        "beyond": anything,
        "labels": anything,
        "beyond_share": anything,
        "unseen": unseen_objects(config),
        "characters": str(data.get("min_characters")),
        "who": named,
        "one": one,
        "rights": _expected_rights(files, bounds),
        "several": several,
        "unit": str(plan["unit"]),
        "delta": f"{plan['delta']:.3g}",
        "default": f"{default_delta(files):.3g}",
        "exposed": f"{100 * -math.expm1(data['num_clients'] * math.log1p(-plan['delta'])):.2g}",
        "adjacency": str(plan["adjacency"]),
        "accountant": str(plan["accountant"]),
        "sampling": str(plan["sampling"]),
        "noise": str(plan["noise"]),
        "factors": ", ".join(factors),
        "proofs": lambda text: set(text.split(" and ")) <= PROOFS,
        **_column_fields(files.columns or {}, bool(files.columns)),
        **({"what": COUNTS_ALONE} if _counts_alone(files) else {}),
    }


def _expected_rounds(files: RunFiles) -> Expected:
    """Return what the model card must say: how many rounds are done and, if fewer than planned, why."""
    done, planned = len(files.rounds), files.plan["num_rounds"]
    early, pause = str((files.end or {}).get("early", "")), files.config["run"]["stop_after_round"]
    if done >= planned:
        return f"{planned}, complete"
    if pause is not None and done >= pause:
        return f"{done} of {planned}, paused: it may go on"
    if not early.startswith(f"before round {done + 1}: "):
        return f"{done} of {planned}, ended early"
    return f"{done} of {planned}, ended {early}"


def _steps_text(files: RunFiles) -> str:
    """Write how many local steps a round has, as the model card states it."""
    groups, local = files.plan["groups"], files.config["training"]["local_steps"]
    events = [charge["event"] for group in groups for charge in group["charges"]]
    steps = sorted({event["num_steps"] for event in events if "num_steps" in event})
    if files.plan["unit"] == "record":
        chosen = [group["spending"] for group in groups if "spending" in group]
        steps += [own.get("steps", {"num_steps": 1})["num_steps"] for own in chosen]
    if not steps:
        return "1 local step" if local == 1 else f"{local} local steps"
    # Where clients are drawn, a record's allowance ends by chance, and each round is planned with all steps.
    paid = [
        sum(charge["count"] for charge in group["charges"])
        for group in groups
        if group["charges"] and group["sampling_rate"] == 1.0
    ]
    least = 0 if min(paid, default=math.inf) < files.plan["num_rounds"] else steps[0]
    if least == steps[-1]:
        return "1 step" if least == 1 else f"{least} steps"
    return f"{least} to {steps[-1]} steps"


def _column_fields(declared: Mapping[str, Any], there: bool) -> dict[str, Expected]:
    """Return what the model card must say about the columns of the run's data tables."""
    label = declared.get("label", {})
    labels = list(label.get("columns", {})) or [label.get("column", "")]
    if "time" in label:
        labels = [label["time"], label["event"]["column"]]
    inputs = [*declared.get("numeric", {}), *declared.get("categorical", {})]
    if "columns" in label:
        outcomes = ": none, one or several of them"
    elif "range" in label:
        outcomes = f", a number from {label['range'][0]:g} to {label['range'][1]:g}"
    elif "time" in label:
        edges = label["edges"]
        outcomes = f": the time to an event, in {len(edges)} intervals up to {edges[-1]:g}"
    else:
        outcomes = f", {' or '.join(map(str, label.get('classes', ())))}"
    told = ", ".join(map(str, labels))
    return {
        "purpose": str(declared.get("purpose") or "not declared"),
        "period": str(declared.get("period") or "not declared"),
        "predicted": told + outcomes,
        "inputs": ", ".join(map(str, inputs)),
        "what": f" It tells '{told}' from {len(inputs)} facts about a case." if there else "",
    }


def _counts_alone(files: RunFiles) -> bool:
    """Whether the run only releases counts (statistics) and therefore has no model that predicts."""
    return files.config["method"]["name"] in COUNTING


def _expected_rights(files: RunFiles, bounds: Mapping[int, Sequence[Inference]]) -> Expected:
    """Return a function that checks the model card's bound on how often an attacker guesses right."""
    texts, names = set[str](), _names(files)
    for shift in (-ROUNDED_WITHIN, 0.0, ROUNDED_WITHIN):
        groups: dict[int, list[int]] = {}
        for index, own in bounds.items():
            most = max(each.accuracy for each in own)
            right = math.ceil(100 * min(1.0, max(0.5, most + (shift if most < 1 else 0.0))))
            groups.setdefault(right, []).append(index)
        parts = []
        for right in sorted(groups):
            clients = sorted(int(client) for index in groups[right] for client in files.members(index))
            whom = (
                _listed([names[each] for each in clients]) if names else f"{len(clients)} of the participants"
            )
            parts.append(f"in {right} of 100 tries" + (f" for {whom}" if len(groups) > 1 else ""))
        texts.add(", and ".join(parts))
    return lambda text: text in texts


def _rows(files: RunFiles) -> Mapping[str, list[Fields]]:
    plan, offered = files.plan, files.config["privacy"]["client_budgets"]
    group_of = {int(client): m for m in range(len(plan["groups"])) for client in files.members(m)}
    parties: list[Fields] = []
    for client, name in enumerate(_names(files)):
        group = group_of[client]
        own = f"{plan['groups'][group]['epsilon']:g}" if plan["private"] else "none"
        parties.append(
            {
                "party": name,
                "budget": own,
                "offered": f"{offered[client]:g}" if offered else own,
                "spent": spent_text(files, group) if plan["private"] else "",
            }
        )
    return {"party": parties}


def _inference_rows(promise: MechanismCard, bounds: Mapping[int, Sequence[Inference]]) -> list[Fields]:
    rows: list[Fields] = []
    for index, own in bounds.items():
        of_members = promise.of_members(index)
        for number, each in enumerate(own):
            row: dict[str, Expected] = {
                "group": str(index),
                **_percent(each),
                **promise.inference_row(index, number),
            }
            if of_members is not None:
                row |= {f"member_{name}": value for name, value in _percent(of_members).items()}
            rows.append(row)
    return rows


def _percent(bound: Inference) -> dict[str, Expected]:
    within = 100 * bound.within
    return {
        "positives": near(100 * bound.positives, 5 * within),
        "accuracy": near(100 * bound.accuracy, within),
    }


def _listed(names: Sequence[str]) -> str:
    return " and ".join(part for part in (", ".join(names[:-1]), names[-1]) if part)
