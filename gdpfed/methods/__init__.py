"""The methods, one a file: each makes a plan, asks for sums, and computes the next model."""

import conf.extensions
from conf.schema import Config
from gdpfed.methods.base import ClientSum, Method, SumRequest
from gdpfed.registry import Registry

METHODS: Registry[type[Method]] = conf.extensions.METHODS


def make_method(config: Config) -> Method:
    """The configured method with its plan.

    Raises:
        ConfigError: an unknown method, or options of another one.
        PrivacyError: a plan that has no valid accounting or that no noise can reach.
    """
    return METHODS.get(config.method.name).from_config(config)


__all__ = ["METHODS", "ClientSum", "Method", "SumRequest", "make_method"]
