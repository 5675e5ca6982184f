"""Name what a run used that its files do not hold: objects of a Python program, and code of packages."""

from collections.abc import Collection, Iterator, Mapping
from importlib.metadata import entry_points
from typing import Any

from gdpfed.extras_table import EXTRAS
from gdpfed.mechanism_table import MECHANISMS

GIVEN = "python."
"""The prefix of the names of objects that a Python program supplied to a run."""
OF_PROGRAMS = {"data set": ("python", "flower_app"), "model": ("flower_arrays",)}
"""Data sets and models that only a program supplies and that no file holds."""

OWN_WORKS = (
    *("update", "noised_update", "dp_sgd", "gradient_sum", "convex_steps", "window_steps"),
    *("held_out_counts", "held_out_rates", "vote", "vote_by_rounds", "norm_histogram"),
    *("client_statistics", "record_statistics"),
)
"""Kinds of local computation that are built in, so that they need no installed package."""


UPDATES = ("update", "client_statistics")
"""Kinds of local computation whose result is bounded as a whole, whatever it contains."""


_OWN: Mapping[str, Collection[str]] = {
    "method": (
        *("ali_dpfl", "dp_fedavg", "dp_sgd", "dp_sum", "fedavg", "gdpfed", "gdpfed_op", "gdpfed_plus"),
        *("gdpfed_star", "idp_fedavg_sample", "idp_fedavg_scale", "pfa"),
    ),
    "data set": (
        *("breast_cancer", "cifar10", "csv", "digits", "fmnist", "heart_disease", "image_folder", "npz"),
        *("python", "shakespeare", "svhn"),
    ),
    "model": (
        *("cnn2", "cnn3", "fcn", "linear", "lstm", "mlp", "ngram", "resnet18", "softmax", "transformer"),
    ),
    "loss": ("binary_cross_entropy", "cross_entropy", "huber", "next_token", "squared_error"),
    "partition": (
        *("dirichlet", "exponential", "iid", "labels", "linear", "natural", "owners", "pathological"),
        *("shards", "square"),
    ),
    "metric": (
        *("accuracy", "auc", "ece", "exact_match", "hamming_loss", "macro_f1", "mean_absolute_error"),
        *("mean_auc", "mean_ece", "mean_f1", "mean_iou", "micro_f1", "pixel_accuracy", "pixel_ece", "r2"),
    ),
    "optimizer": ("adam", "adamw", "sgd"),
    "schedule": ("constant", "cosine", "linear"),
    "client state": ("scaffold",),
    "mechanism": tuple(MECHANISMS),
    "extension": (),
}
"""The names of this project by kind, those of its extras aside; any other is a package's or a program's."""

GROUPS = {
    "method": "gdpfed.methods",
    "data set": "gdpfed.datasets",
    "model": "gdpfed.models",
    "loss": "gdpfed.losses",
    "partition": "gdpfed.partitions",
    "metric": "gdpfed.metrics",
    "optimizer": "gdpfed.optimizers",
    "schedule": "gdpfed.schedules",
    "client state": "gdpfed.client_states",
    "mechanism": "gdpfed.audit_rules",
    "extension": "gdpfed.extensions",
}
"""The entry points by which a package adds a name of each kind."""


def own_names(kind: str) -> frozenset[str]:
    """Return the names of one kind, such as "method", that this project has, extras included."""
    return frozenset(_OWN[kind]) | EXTRAS.get(GROUPS[kind], {}).keys()


def is_own_method(config: Mapping[str, Any]) -> bool:
    """Whether a run's method is one of this project, whose works and weights this audit knows."""
    return config["method"]["name"] in own_names("method")


def is_of_package(work: str) -> bool:
    """Whether an installed package defines this kind of local computation, rather than gdpfed itself."""
    return work not in OWN_WORKS and bool(entry_points(group="gdpfed.works", name=work))


def unseen_objects(config: Mapping[str, Any]) -> str:
    """Name the Python objects that a program gave to a run; "" if there are none.

    `config`: of the run, by section and key.
    """
    return _listed(_given(config))


def objects_of_packages(config: Mapping[str, Any]) -> str:
    """Name what a run has by names that are not this project's; "" if there is nothing."""
    return _listed(_of_packages(config))


def not_computed(config: Mapping[str, Any], plan: Mapping[str, Any]) -> tuple[str, ...]:
    """Return one line for each thing that the audit could not check from the run's files."""
    lines = []
    if unseen := unseen_objects(config):
        lines.append(
            f"whether the run computed with what it names: {unseen} came from a program, and no file of the "
            "run holds them. The figures follow from plan, ledger and log, whatever these are; nobody can "
            "repeat or resume the run from its files alone"
        )
    if packaged := objects_of_packages(config):
        lines.append(
            f"whether the run computed with what it names: {packaged} came from a package or a program, and "
            "no file of the run holds their code. The figures follow from plan, ledger and log, whatever it "
            "does"
        )
    if extensions := [name for kind, name in _named(config) if kind == "extension"]:
        lines.append(
            f"what {', '.join(extensions)} did beside the rounds: it is code of the server's, which sees "
            "what the server sees"
        )
    if plan["mechanism"] not in own_names("mechanism"):
        lines.append(
            f"what the mechanism {plan['mechanism']} costs, by a formula of this audit: the figures are "
            "those of a rule that a package has"
        )
    return (*lines, *_of_another_method(config, plan))


def _of_another_method(config: Mapping[str, Any], plan: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each entry of the plan that only a method which is not this project's decides."""
    name = config["method"]["name"]
    if is_own_method(config):
        return
    yield (
        f"what clients computed as {', '.join(plan['works'])}: the method {name} is a package's or a "
        "program's, and plan.json alone names the work. The figures hold for whatever is clipped and noised "
        "as the plan says"
    )
    yield (
        f"the weights of sums, their rule and the shares that top-k keeps: the method {name} may choose "
        "them, and plan.json alone says which. No figure rests on them"
    )


def _listed(named: Iterator[tuple[str, str]]) -> str:
    return ", ".join(f"the {kind} {name}" for kind, name in named)


def _named(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield the kind and the name of each thing that a run's settings choose by name."""
    data, training = config["dataset"], config["training"]
    named = [("method", config["method"]["name"]), ("data set", data["name"]), ("model", data["model"])]
    named += [(kind, data.get(kind)) for kind in ("loss", "partition")]
    named += [("metric", name) for name in data.get("metrics") or ()]
    named += [
        (kind, training.get(kind.replace(" ", "_"))) for kind in ("optimizer", "schedule", "client state")
    ]
    named += [("extension", name) for name in config["run"].get("extensions") or {}]
    # Older runs lack settings that came later.
    yield from ((kind, str(name)) for kind, name in named if name is not None)


def _is_given(kind: str, name: str) -> bool:
    return name in OF_PROGRAMS.get(kind, ()) or name.startswith(GIVEN)


def _given(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    return ((kind, name) for kind, name in _named(config) if _is_given(kind, name))


def _of_packages(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for kind, name in _named(config):
        if not _is_given(kind, name) and name not in own_names(kind):
            yield kind, name
