"""Settings and helpers for cheap measurements of epsilon: many canaries, few rounds, and fast sums."""

from functools import lru_cache

from conf.load import load
from gdpfed.extras.canaries.measure import Settings, measure

# 640 clients who each have a coordinate of the model's 650, and no noise for those who might drop out. Three
# runs cost less than one with three times as many clients, who would need three times as many coordinates.
MANY = (
    "dataset=digits",
    "dataset.model=linear",
    "dataset.num_clients=640",
    "dataset.num_rounds=4",
    "privacy.sampling_rate=0.3",
    "privacy.delta=1e-3",
    "privacy.group_shares=[1]",
    "privacy.budgets=[3]",
    "method=dp_fedavg",
    "privacy.against=outsiders",
    "secagg.dropout_tolerance=0",
    "secagg=off",
)
# Two turns of four, which no secret hides, and noise that is taken back.
STREAM = ("privacy.against=everyone", "privacy.accountant=pld", "privacy.sampling_rate=0.5")
FEW = (
    "dataset=digits",
    "dataset.num_clients=60",
    "privacy.against=outsiders",
    "dataset.num_rounds=2",
    "privacy.sampling_rate=0.5",
    "privacy.delta=1e-3",
    "privacy.accountant=rdp",
)
# 1,437 records of six parties, each with a coordinate of its own among 4,810.
RECORDS = (
    "dataset=digits",
    "dataset.model=mlp",
    "dataset.num_clients=6",
    "privacy=record_level",
    "privacy.batch_rate=0.3",
    "run.num_rounds=4",
    "privacy.delta=1e-3",
    "privacy.budgets=[3]",
    "training.local_steps=2",
    "secagg=off",
)
# No test fails by chance more often than once in a million times.
SURELY = 1 - 1e-6

loaded = lru_cache(maxsize=64)(load)


def measured(overrides, *, runs, kind="dirac", confidence=SURELY, **options):
    return measure(
        loaded(tuple(overrides)), Settings(kind=kind, num_runs=runs, confidence=confidence), **options
    )


def by_view(measurement, group=0):
    return {figure.view: figure for figure in measurement.final if figure.group == group}
