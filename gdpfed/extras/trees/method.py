"""Gradient boosting of random trees: in each round, noised sums of gradients change the leaf values.

Splits are drawn from public numbers, so nothing but the sums of leaves is paid for. Every round all K trees
take a step along them: the weak learner of a round is the mean of K trees. Each record is in one leaf of
every tree, so averaging over K trees brings no more noise into a score than one tree would (`.model`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, cast

from conf.schema import Config, MethodConfig, require
from gdpfed.errors import ConfigError
from gdpfed.extras.trees.splits import MOST_DEPTH, MOST_TREES, widths_of, written
from gdpfed.methods.base import CurveStyle
from gdpfed.methods.choose import Proposal
from gdpfed.methods.dp_sum import DPSum
from gdpfed.methods.record_method import RecordMethodConfig

MODEL, USUAL_MODEL = "trees", "linear"
"""What is trained, and what data sets of tables recommend, which therefore nobody has asked for."""


@dataclass
class TreesConfig(RecordMethodConfig):
    """The options of method=trees, in addition to those of all methods for records."""

    trees: int = 200
    depth: int = 2

    def validate(self) -> None:
        super().validate()
        for name, value, most in (("trees", self.trees, MOST_TREES), ("depth", self.depth, MOST_DEPTH)):
            require(1 <= value <= most, f"method.{name}={value} must be a whole number from 1 to {most}")


class Trees(DPSum):
    """Random trees: each round changes all leaf values by one noised sum of clipped gradients.

    theta - eta (sum_i sum_batch clip_C(g phi(x)) + C sigma N(0, I)) / sum_i B_i, phi(x) of norm 1. It has
    1 / sqrt(K) in the leaf that x is in of each of K trees, and else 0. So one record moves the sum by
    min(||g||, C), as K (||g|| / sqrt(K))^2 = ||g||^2, with g the gradient of its loss by the model's outputs,
    whose norm is below sqrt(2) for classes. That is the sum of `DPSum`, and so are its noise and what it
    costs.
    """

    name: ClassVar[str] = "trees"
    label: ClassVar[str] = "random trees"
    curve: ClassVar[CurveStyle | None] = None
    config_class: ClassVar[type[MethodConfig]] = TreesConfig
    differences: ClassVar[Sequence[str]] = ()

    @classmethod
    def resolve(cls, config: Config) -> Config:
        return super().resolve(with_trees(config))

    @classmethod
    def proposals(cls, config: Config) -> tuple[Config, list[Proposal]]:
        return super().proposals(with_trees(config))


def with_trees(config: Config) -> Config:
    """Return the configuration of method=trees with random trees as its model and their options filled in.

    Raises:
        ConfigError: another model or options of one, or records that are not rows of declared columns.
        LearningError: a declaration that cannot be read.
    """
    data, options = config.dataset, cast("TreesConfig", config.method)
    if data.model not in (MODEL, USUAL_MODEL):
        raise ConfigError(
            f"method=trees trains trees, not dataset.model={data.model}: leave out dataset.model, or use "
            "method=dp_sum"
        )
    from gdpfed.clients.configured import source_of
    from gdpfed.learning.data import load_dataset
    from gdpfed.learning.data.tabular import declared_columns

    source = source_of(config)
    columns = declared_columns(source) if source.name == "csv" else load_dataset(source).columns
    if columns is None:
        raise ConfigError(
            f"method=trees asks for declared columns, and dataset={source.name} has none: use dataset=csv "
            "with a table, or method=dp_sum"
        )
    model_options: dict[str, Any] = {
        "trees": options.trees,
        "depth": options.depth,
        "columns": written(widths_of(columns)),
        "seed": config.run.seed + 1,
    }
    if data.model_options and dict(data.model_options) != model_options:
        raise ConfigError(
            f"dataset.model_options={data.model_options} follow from method=trees: leave them out, and set "
            "method.trees and method.depth"
        )
    return replace(config, dataset=replace(data, model=MODEL, model_options=model_options))
