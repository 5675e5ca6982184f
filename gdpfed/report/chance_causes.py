"""Finds runs whose accuracy is not above chance, and names possible causes.

What is said follows from what the server holds already: its own test examples, the plan, what the ledger was
charged and, where only clients test, noised counts that were released.
"""

from collections.abc import Iterator
from dataclasses import asdict
from math import sqrt

import numpy as np

from gdpfed.learning.labels.intervals import area_interval, share_interval
from gdpfed.learning.training.evaluate import central_evaluation
from gdpfed.methods.base import Theta
from gdpfed.report.chance import UNEVEN, AtChance
from gdpfed.report.model_card import base_rate
from gdpfed.report.plan_lines import unspent
from gdpfed.rounds.extensions.held_out import HeldOutResult
from gdpfed.rounds.loop import Announce
from gdpfed.rounds.observers import Observer, RunConcluded
from gdpfed.rounds.run import PreparedRun
from gdpfed.runs.file_formats import AT_CHANCE_FILE, save_result
from gdpfed.runs.run_end import RunEnd

SCALED = 4.0
"""Inputs of a standardised column, and those of pictures, lie within -4 and 4."""
MOST_OUTSIDE = 0.01
LOOKED_AT = 2000


class ChanceFile(Observer):
    """Writes a file into the run's directory, and a log line, if accuracy is not above chance."""

    def __init__(self, run: PreparedRun, announce: Announce) -> None:
        self._run, self._announce = run, announce

    def concluded(self, run: RunConcluded) -> None:
        found = at_chance(self._run, run)
        path = self._run.path / AT_CHANCE_FILE
        if found is None:
            path.unlink(missing_ok=True)
        else:
            save_result(path, asdict(found))
            self._announce(found.line)


def at_chance(run: PreparedRun, concluded: RunConcluded) -> AtChance | None:
    """Return the finding that accuracy is at chance level; None if accuracy or AUC is above it, or unknown.

    It is at chance where its 95 % interval reaches down to the share of the most frequent class, unless an
    area under the curve is above a half by its interval: scores may tell classes apart that answers do not.
    """
    nodes_alone = run.config.run.evaluation == "nodes"
    found = _judged_at_clients(run) if nodes_alone else _judged_on_server(run, concluded)
    if found is None or found.low > found.share:
        return None
    named: list[str] = []
    measured = concluded.records[-1].metrics if concluded.records else {}
    if found.share >= UNEVEN and "auc" not in measured:
        named.append(
            f"'{found.most_frequent}' is so frequent that accuracy tells models hardly apart: "
            "dataset.metrics=[auc,accuracy] shows the area under the curve, and gdpfed compare its interval"
        )
    named += causes(run, concluded)
    return AtChance(**(vars(found) | {"causes": named}))


def _judged_on_server(run: PreparedRun, concluded: RunConcluded) -> AtChance | None:
    """Return accuracy and base rate on test examples; None if not measured, or if AUC is above chance."""
    if not concluded.records:
        return None
    judged = RunEnd.read(run.path).judged(concluded.records[-1])
    most_frequent, accuracy = base_rate(run.task), judged.accuracy
    if most_frequent is None or accuracy is None:
        return None
    number = len(run.task.load().test)
    low, high = share_interval(np.arange(number) < round(accuracy * number))
    area = judged.metrics.get("auc")
    if low <= most_frequent[1] and area is not None and _least_area(run, area, concluded.released) > 0.5:
        return None
    return AtChance(accuracy, low, high, *most_frequent, f"{number} test examples", ())


def _least_area(run: PreparedRun, area: float, released: Theta) -> float:
    """Return the lower end of the 95 % interval of the released model's AUC on the test examples."""
    data = run.task.load()
    if data.num_classes == 2:
        others, members = data.labels.counts(data.test.y).tolist()
        return area_interval(area, members, others)[0]
    evaluation = central_evaluation(run.task, run.config.run.device, ["auc"])
    (found,) = evaluation.of_parts(released.astype(np.float32), [np.arange(len(data.test))])
    ends = found.intervals["auc"]
    return 0.0 if ends is None else ends[0]


def _judged_at_clients(run: PreparedRun) -> AtChance | None:
    """Return accuracy and base rate on held-out records; None if not measured, or if AUC is above chance."""
    found = HeldOutResult.read(run.path)
    accuracy = None if found is None else found.metrics.get("accuracy")
    if found is None or not found.cases or found.cases <= 0 or accuracy is None:
        return None
    if None in (accuracy.value, accuracy.low, accuracy.high):
        return None
    area = found.metrics.get("AUC")
    if area is not None and (area.low or 0.0) > 0.5:
        return None
    classes = run.order.task.classes_counted
    held = np.reshape(found.counts[: classes**2], (classes, classes)).sum(axis=1)
    names, largest = run.task.load().named_classes, int(held.argmax())
    return AtChance(
        accuracy=accuracy.value or 0.0,
        low=accuracy.low or 0.0,
        high=accuracy.high or 0.0,
        most_frequent=names[largest] if largest < len(names) else str(largest),
        share=min(1.0, float(held[largest]) / found.cases),
        tested=f"about {found.cases:.0f} records that clients hold out, by noised counts",
        causes=(),
    )


def causes(run: PreparedRun, concluded: RunConcluded) -> Iterator[str]:
    """Name possible causes of accuracy at chance level: unscaled inputs, much noise, unspent budgets."""
    yield from _unscaled_inputs(run)
    plan = run.method.plan
    if plan.private and not plan.about_records and not plan.mechanism.adds_own_noise:
        # The length (L2 norm) of a step's noise, over the largest step that the cohort can make.
        above = run.method.weighting.noise_per_step(plan) * sqrt(len(concluded.released))
        if above > 1:
            yield (
                f"the noise of a step is {above:.3g} times as long as the step that all clients of a round "
                "can make together: raise budgets, privacy.sampling_rate or dataset.num_clients, or shrink "
                "the model"
            )
    if plan.private and not plan.about_records and len(concluded.records) >= plan.num_rounds:
        yield from unspent([group.epsilon for group in plan.groups], concluded.spent)


def _unscaled_inputs(run: PreparedRun) -> Iterator[str]:
    test = run.task.load().test
    if not len(test):
        return
    inputs = test.take(np.arange(min(len(test), LOOKED_AT))).x
    if not np.issubdtype(inputs.dtype, np.floating):
        return
    outside = float(np.mean(np.abs(inputs) > SCALED))
    if outside > MOST_OUTSIDE:
        yield (
            f"inputs are not scaled: {100 * outside:.0f} % of those of the test examples lie outside of "
            f"[-{SCALED:g}, {SCALED:g}], up to {float(np.abs(inputs).max()):.3g}"
        )
