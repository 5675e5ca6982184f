"""Writes a package as somebody else would: with a method, a local work, data, a model and an extension."""

from pathlib import Path

ENTRIES = """\
[gdpfed.methods]
halving = halves_of_updates.method:Halving
[gdpfed.conf]
halves_of_updates = halves_of_updates.conf
[gdpfed.works]
halved = halves_of_updates.work
[gdpfed.datasets]
halves = halves_of_updates.data:load
[gdpfed.models]
half_model = halves_of_updates.model:build
[gdpfed.losses]
half_loss = halves_of_updates.loss:loss
[gdpfed.extensions]
half_time = halves_of_updates.extension:HalfTime
"""
FILES = {
    "__init__.py": "",
    "conf/__init__.py": "",
    "method.py": """
from dataclasses import dataclass, replace

from conf.schema import MethodConfig
from gdpfed.methods.gdpfed import GDPFed
from gdpfed.methods.weighting import Weighting


@dataclass
class HalvingConfig(MethodConfig):
    pass


def halved(plan):
    return replace(plan, mechanism=replace(plan.mechanism, works=("halved",)))


class Halving(GDPFed):
    name = "halving"
    config_class = HalvingConfig

    @classmethod
    def make_plan(cls, config):
        return halved(super().make_plan(config))

    @classmethod
    def make_turn_plan(cls, config):
        return halved(super().make_turn_plan(config))

    @classmethod
    def make_weighting(cls, config, plan):
        usual = Weighting.of(plan)
        return replace(usual, group_weights=tuple(2 * each for each in usual.group_weights))

    def requests(self, theta, round_index, cohorts):
        return [replace(each, work="halved") for each in super().requests(theta, round_index, cohorts)]
""",
    "conf/method/halving.yaml": """
defaults:
  - schema_halving
  - _self_

name: halving
server_learning_rate: 1.0
""",
    "conf/dataset/halves.yaml": """
defaults:
  - digits
  - _self_

name: halves
model: half_model
loss: half_loss
""",
    "work.py": """
from gdpfed.clients.works import update


def work(job):
    return update.work(job) / 2
""",
    "data.py": """
from gdpfed.learning.data import DATASETS


def load(source):
    return DATASETS.get("digits")(source)
""",
    "model.py": """
from torch import nn


def build(input_shape, num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, num_classes))
""",
    "loss.py": """
from torch.nn.functional import cross_entropy


def loss(outputs, targets):
    return cross_entropy(outputs, targets, reduction="none") / 2
""",
    "extension.py": """
from gdpfed.rounds.extensions.base import Extension


class HalfTime(Extension):
    key = "half_time"
""",
}


def write_package(site: Path) -> Path:
    """Write the package into a folder as if it were installed there; return that folder."""
    metadata = site / "halves-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: halves\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(ENTRIES)
    for name, text in FILES.items():
        path = site / "halves_of_updates" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return site
