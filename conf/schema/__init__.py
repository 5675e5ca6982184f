"""The dataclasses of all settings; Hydra raises an error for a setting of a wrong name or type.

Every option file extends one of these dataclasses. They are plain data, so the rest of the project can take
them as arguments without knowing Hydra. Values are checked where they are used for the first time: what the
mathematics forbids is refused by :mod:`gdpfed.privacy`, what only a configuration can get wrong is refused
here, in ``validate``, which :func:`conf.load.load` calls.
"""

from dataclasses import dataclass, fields
from typing import Any

from omegaconf import MISSING

from conf.limits import VOTABLE
from conf.schema.checks import require
from conf.schema.dataset_config import DatasetConfig, TrainingConfig
from conf.schema.privacy_config import CLIENTS, PrivacyConfig
from conf.schema.run_config import CHOOSABLE, LOCAL, MethodConfig, RunConfig, SimulationConfig
from conf.schema.secagg_config import FIRST_SEEN, SecAggConfig

__all__ = [
    "CHOOSABLE",
    "CLIENTS",
    "FIRST_SEEN",
    "VOTABLE",
    "Config",
    "DatasetConfig",
    "MethodConfig",
    "PrivacyConfig",
    "RunConfig",
    "SecAggConfig",
    "SimulationConfig",
    "TrainingConfig",
    "require",
]


@dataclass
class Config:
    """The whole configuration of a run."""

    dataset: DatasetConfig = MISSING
    training: TrainingConfig = MISSING
    method: Any = MISSING
    privacy: PrivacyConfig = MISSING
    secagg: SecAggConfig = MISSING
    run: RunConfig = MISSING
    simulation: SimulationConfig = MISSING

    def validate(self) -> None:
        """Check the settings of all setting groups, such as ``privacy`` and ``training``.

        Raises ConfigError: one line that names the value and the remedy.
        """
        for section in fields(self):
            getattr(self, section.name).validate()
        least = self.run.minimum_nodes
        require(
            least is None or least >= self.secagg.minimum_cohort,
            f"run.minimum_nodes={least} is below secagg.minimum_cohort={self.secagg.minimum_cohort}, the "
            f"smallest sum: set run.minimum_nodes={self.secagg.minimum_cohort} or more",
        )
        require(
            self.secagg.noise_levels == 0 or self.privacy.noise == "discrete_gaussian",
            f"secagg.noise_levels={self.secagg.noise_levels} removes parts of the noise, which must be "
            "integers: use privacy.noise=discrete_gaussian, or secagg.noise_levels=0",
        )
        require(
            self.run.mailbox is None or self.privacy.against == "outsiders",
            f"privacy.against=everyone does not go with run.mailbox={self.run.mailbox}: the cloud sets the "
            "model from which each round of an edge begins; use privacy.against=outsiders",
        )
        require(
            self.training.client_state is None or self.simulation.backend == LOCAL,
            f"training.client_state={self.training.client_state} is kept in files of one machine, and "
            f"simulation.backend={self.simulation.backend} trains on several: leave one of them out",
        )
