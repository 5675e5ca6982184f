"""The methods by name, and the option files: the project's own and those of installed packages.

A package declares them as entry points, as docs/extending.md shows: ``gdpfed.conf`` names a package whose
directory holds option files (``method/*.yaml``, ``dataset/*.yaml``), ``gdpfed.methods`` a method, whose
``config_class`` is the dataclass behind its option file. The project's own methods are named here in the
same way, and loaded when they are asked for: nothing of them is imported here.
"""

from pathlib import Path
from types import ModuleType
from typing import Any

from conf.schema import MethodConfig
from gdpfed.errors import ConfigError
from gdpfed.registry import Registry

OWN_DIRECTORY = Path(__file__).resolve().parent

_option_packages: Registry[ModuleType] = Registry("option package", "gdpfed.conf", error=ConfigError)
METHODS: Registry[Any] = Registry(
    "method",
    "gdpfed.methods",
    built_in={
        "ali_dpfl": "gdpfed.methods.ali_dpfl:ALIDPFL",
        "dp_fedavg": "gdpfed.methods.dp_fedavg:DPFedAvg",
        "dp_sgd": "gdpfed.methods.dp_sgd:DPSGD",
        "dp_sum": "gdpfed.methods.dp_sum:DPSum",
        "edge_average": "gdpfed.systems.h2fdp.edge_average:EdgeAverage",
        "fedavg": "gdpfed.methods.fedavg:FedAvg",
        "fedpcs": "gdpfed.systems.fedpcs.fedpcs:FedPCS",
        "gdpfed": "gdpfed.methods.gdpfed:GDPFed",
        "gdpfed_op": "gdpfed.methods.gdpfed:GDPFedOp",
        "gdpfed_plus": "gdpfed.methods.gdpfed:GDPFedPlus",
        "gdpfed_star": "gdpfed.methods.gdpfed_star:GDPFedStar",
        "h2fdp": "gdpfed.systems.h2fdp.h2fdp:H2FDP",
        "hfl_dp": "gdpfed.systems.h2fdp.hier_baselines:HFLDP",
        "hier_fedavg": "gdpfed.systems.h2fdp.hier_baselines:HierFedAvg",
        "idp_fedavg_sample": "gdpfed.methods.idp_fedavg_sample:IDPFedAvgSample",
        "idp_fedavg_scale": "gdpfed.methods.idp_fedavg_scale:IDPFedAvgScale",
        "pedpfl": "gdpfed.systems.h2fdp.hier_baselines:PEDPFL",
        "pfa": "gdpfed.methods.pfa:PFA",
        "sampled_fedavg": "gdpfed.systems.fedpcs.sampled_fedavg:SampledFedAvg",
    },
    error=ConfigError,
)
"""Every method that can be chosen: subclasses of :class:`gdpfed.methods.base.Method`."""

QUANTITIES: Registry[Any] = Registry(
    "quantity of experiments",
    "gdpfed.experiments",
    built_in={
        "noise": "gdpfed.experiments.planned_noise:present_noise",
        "rates": "gdpfed.experiments.planned_rates:present_rates",
        "steps": "gdpfed.experiments.planned_steps:present_steps",
        "mean_field": "gdpfed.systems.fedpcs.game_experiments:present_games",
        "welfare": "gdpfed.systems.fedpcs.game_experiments:present_games",
        "server_cost": "gdpfed.systems.fedpcs.game_experiments:present_games",
        "caps": "gdpfed.systems.fedpcs.game_experiments:present_games",
        "control": "gdpfed.systems.h2fdp.control_experiment:present_control",
    },
    error=ConfigError,
)
"""What experiments show that needs no training: functions of an experiment, its data sets and its cells."""


def option_directories() -> list[Path]:
    """Where option files are: the project's own directory first, then those of installed packages.

    Raises:
        ConfigError: an entry point that is no package.
    """
    return [OWN_DIRECTORY, *(_directory(name) for name in _option_packages.names())]


def _directory(name: str) -> Path:
    package = _option_packages.get(name)
    places = list(getattr(package, "__path__", ()))
    if not places:
        raise ConfigError(
            f"entry point {name} of gdpfed.conf is {package!r}, not a package: name the package whose "
            "directory holds the option files"
        )
    return Path(places[0]).resolve()


def method_configs() -> dict[str, type[MethodConfig]]:
    """The dataclass behind the options of every method, by the method's name.

    Raises:
        ConfigError: a method that cannot be imported, that two packages name, or whose ``config_class`` is
            no :class:`~conf.schema.MethodConfig`.
    """
    return {name: _config_class(name, method) for name, method in METHODS.items().items()}


def _config_class(name: str, method: object) -> type[MethodConfig]:
    config_class = getattr(method, "config_class", None)
    if not (isinstance(config_class, type) and issubclass(config_class, MethodConfig)):
        raise ConfigError(
            f"method '{name}' has config_class {config_class!r}: make it a dataclass that extends "
            "conf.schema.MethodConfig"
        )
    return config_class
