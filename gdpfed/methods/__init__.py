"""The methods, one a file: what each plans, and what each makes of the sums it asks for."""

from conf.schema import Config, ConfigError
from gdpfed.methods.base import ClientSum, Method, SumRequest
from gdpfed.methods.dp_fedavg import DPFedAvg
from gdpfed.methods.fedavg import FedAvg
from gdpfed.methods.gdpfed import GDPFed, GDPFedOp, GDPFedPlus

METHODS: dict[str, type[Method]] = {
    "fedavg": FedAvg,
    "dp_fedavg": DPFedAvg,
    "gdpfed": GDPFed,
    "gdpfed_op": GDPFedOp,
    "gdpfed_plus": GDPFedPlus,
}


def make_method(config: Config) -> Method:
    """The configured method with its plan.

    Raises:
        ConfigError: an unknown method, or options of another one.
        PrivacyError: a plan that has no valid accounting or that no noise can reach.
    """
    name = config.method.name
    if name not in METHODS:
        raise ConfigError(f"method={name} is not one of {', '.join(METHODS)}")
    return METHODS[name].from_config(config)


__all__ = ["METHODS", "ClientSum", "Method", "SumRequest", "make_method"]
