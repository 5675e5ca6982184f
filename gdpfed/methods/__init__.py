"""The methods, one a file: what each plans, and what each makes of the sums it asks for."""

from conf.schema import Config
from gdpfed.errors import ConfigError
from gdpfed.methods.base import ClientSum, Method, SumRequest
from gdpfed.methods.dp_fedavg import DPFedAvg
from gdpfed.methods.fedavg import FedAvg
from gdpfed.methods.gdpfed import GDPFed, GDPFedOp, GDPFedPlus
from gdpfed.methods.idp_fedavg_sample import IDPFedAvgSample
from gdpfed.methods.idp_fedavg_scale import IDPFedAvgScale
from gdpfed.methods.pfa import PFA
from gdpfed.registry import Registry

METHODS: Registry[type[Method]] = Registry("method", "gdpfed.methods", error=ConfigError)
for _method in (FedAvg, DPFedAvg, GDPFed, GDPFedOp, GDPFedPlus, IDPFedAvgScale, IDPFedAvgSample, PFA):
    METHODS.register(_method.name, _method)


def make_method(config: Config) -> Method:
    """The configured method with its plan.

    Raises:
        ConfigError: an unknown method, or options of another one.
        PrivacyError: a plan that has no valid accounting or that no noise can reach.
    """
    return METHODS.get(config.method.name).from_config(config)


__all__ = ["METHODS", "ClientSum", "Method", "SumRequest", "make_method"]
