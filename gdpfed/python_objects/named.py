"""Register objects under names that begin with ``python.``, and find the settings that choose them."""

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gdpfed.errors import ConfigError
from gdpfed.late_import import packages_needed
from gdpfed.registry import OF_PYTHON, Registry

if TYPE_CHECKING:
    from gdpfed.learning.labels import Metric
    from gdpfed.rounds.extensions.base import Extension

KEYS = {
    "model": "dataset.model",
    "loss": "dataset.loss",
    "metrics": "dataset.metrics",
    "partition": "dataset.partition",
    "extensions": "run.extensions",
}
"""The setting that each kind of Python object replaces."""


_GIVEN: dict[tuple[str, str], tuple[object, object]] = {}
"""Objects that this process has registered, by kind and name, and what else decides about each."""
USED: list["Extension"] = []
"""Extensions that a run of this process has used; none can be used in a second run."""


def _registered(
    registry: Registry[Any], item: object, chosen: Any, saved: object, made_of: object = None
) -> str:
    """Register an object under a new name, or under its saved name if a run is resumed; return the name.

    `chosen`: what the name stands for, such as a builder of copies of a module. `made_of`: what else decides
    about it.

    Raises ConfigError: the run's name is that of another object of this process.
    """
    label = re.sub(r"\W+", "_", str(getattr(item, "__name__", type(item).__name__))).strip("_") or "object"
    own = f"{OF_PYTHON}{label}"
    again = isinstance(saved, str) and saved.startswith(OF_PYTHON)
    number = 1
    while True:
        name = str(saved) if again else own if number == 1 else f"{own}_{number}"
        known = _GIVEN.get((registry.kind, name))
        if known is None:
            registry.register(name, chosen)
            _GIVEN[registry.kind, name] = item, made_of
            return name
        if known[0] is item and known[1] == made_of:
            return name
        if again:
            raise ConfigError(
                f"the run's {registry.kind} is {name}, and this program has given another object of that "
                "name: give the one that the run began with, or go on in a new process"
            )
        number += 1


@dataclass
class Named:
    """Settings that choose registered Python objects by name, and the extension objects of a run.

    `words`: the settings that choose them. `of_clients`: those of them that clients train by, each by its
    setting. `extensions`: of the run.
    """

    words: list[str] = field(default_factory=list)
    of_clients: dict[str, str] = field(default_factory=dict)
    extensions: list["Extension"] = field(default_factory=list)


def names_of(objects: Mapping[str, Any], label_kind: str, saved: Mapping[str, Any]) -> Named:
    """Register models, losses, metrics, partitions and extensions; return the settings that name them.

    `label_kind`: of the data, which a function that is a metric is of. `saved`: the settings of the run that
    goes on, whose names stay; empty of a new one.

    Raises ConfigError: what is none of these.
    """
    made, before = Named(), saved.get("dataset", {})
    words = made.words
    if isinstance(objects.get("model"), str):
        words.append(f"dataset.model={objects['model']}")
    elif "model" in objects:
        words += _register_model(made, objects["model"], before.get("model"))
    for key in ("loss", "partition"):
        item = objects.get(key)
        if isinstance(item, str):
            words.append(f"{KEYS[key]}={item}")
        elif item is not None:
            name = _register_function(made, key, item, before.get(key))
            words.append(f"{KEYS[key]}={name}")
    if "metrics" in objects:
        words.append(_register_metrics(objects["metrics"], label_kind, before.get("metrics")))
    if "extensions" in objects:
        words.append(
            _register_extensions(made, objects["extensions"], (saved.get("run") or {}).get("extensions"))
        )
    return made


def _register_function(made: Named, key: str, item: Any, saved: object) -> str:
    if not callable(item) or isinstance(item, type):
        form = {"loss": "(outputs, targets) -> losses", "partition": "(data, num_clients, seed) -> positions"}
        raise ConfigError(f"{key}={_shown(item)}: give a function of the form {form[key]}, or a name")
    with packages_needed():
        from gdpfed.learning.data.named_partitions import PARTITIONS
        from gdpfed.learning.labels import LOSSES

    registry: Registry[Any] = LOSSES if key == "loss" else PARTITIONS
    made.of_clients[KEYS[key]] = name = _registered(registry, item, item, saved)
    return name


def _register_model(made: Named, item: Any, saved: object) -> list[str]:
    with packages_needed():
        from torch import nn
        from torch.nn.parameter import is_lazy

        from gdpfed.learning.models import MODELS
        from gdpfed.learning.models.given_module import builder_of, start_of
    if isinstance(item, type) and issubclass(item, nn.Module):
        raise ConfigError(
            f"model={item.__name__} is a class: give a module, as in model={item.__name__}(...)"
        )
    if isinstance(item, nn.Module):
        if any(is_lazy(each) for each in item.state_dict(keep_vars=True).values()):
            raise ConfigError(
                f"model={type(item).__name__} has lazy layers without sizes: call it on an example first"
            )
        name = _registered(MODELS, item, builder_of(item), saved)
        words = [f"dataset.model={name}", f"dataset.model_options={{start:{start_of(item)}}}"]
    elif callable(item):
        name = _registered(MODELS, item, item, saved)
        words = [f"dataset.model={name}"]
    else:
        raise ConfigError(
            f"model={_shown(item)}: give a torch module, a function (input_shape, num_classes) -> module, or "
            "a name"
        )
    made.of_clients[KEYS["model"]] = name
    return words


def _register_metrics(items: Any, label_kind: str, saved: object) -> str:
    from gdpfed.learning.labels import METRICS, Metric

    names = []
    for item, once in _each_with_saved(items, saved if isinstance(saved, list) else ()):
        if isinstance(item, str):
            names.append(item)
            continue
        if not isinstance(item, Metric) and (not callable(item) or isinstance(item, type)):
            raise ConfigError(
                f"metrics holds {_shown(item)}: give functions (outputs, targets) -> figure, or names"
            )
        metric = item if isinstance(item, Metric) else _as_metric(item, label_kind)
        name = _registered(METRICS, item, metric, once, metric.labels)
        names.append(name)
    return f"{KEYS['metrics']}=[{','.join(names)}]"


def _as_metric(item: Callable[..., Any], kind: str) -> "Metric":
    from gdpfed.learning.labels import Metric

    label = getattr(item, "__name__", type(item).__name__)
    return Metric(of=item, words=label.replace("_", " "), percent=False, labels=kind)


def _register_extensions(made: Named, items: Any, saved: object) -> str:
    with packages_needed():
        from gdpfed.rounds.extensions.base import Extension
        from gdpfed.rounds.extensions.table import EXTENSIONS

    names = []
    for item, once in _each_with_saved(items, saved if isinstance(saved, dict) else ()):
        if not isinstance(item, Extension):
            raise ConfigError(
                f"extensions holds {_shown(item)}: give instances of gdpfed.rounds.extensions.base.Extension"
            )
        if any(each is item for each in USED):
            raise ConfigError(
                f"extensions: this {type(item).__name__} has been in a run, which it remembers: give a new "
                "one"
            )
        name = _registered(EXTENSIONS, item, _always(item), once)
        made.extensions.append(item)
        names.append(name)
    return f"{KEYS['extensions']}={{{','.join(f'{name}:{{}}' for name in names)}}}"


def _each_with_saved(items: Any, saved: Collection[object]) -> Iterator[tuple[Any, object]]:
    """Pair each Python object with its name in the run to resume, or with None if their counts differ."""
    objects = items if isinstance(items, list | tuple) else [items]
    names: Iterable[object] = saved if len(saved) == len(objects) else [None] * len(objects)
    return zip(objects, names, strict=True)


def _always(extension: "Extension") -> Callable[[], "Extension"]:
    return lambda: extension


def _shown(item: object) -> str:
    text = " ".join(repr(item).split())
    return text if len(text) < 60 else f"a {type(item).__name__}"
