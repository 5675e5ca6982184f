"""Asks a Flower app that is made of a ``client_fn``, as of a NumPyClient, in the messages that it knows.

Such an app answers Flower's older messages alone: fit with a list of arrays, and a list in return.
"""

from collections.abc import Mapping
from typing import Any

from flwr.app import RecordDict
from flwr.clientapp import ClientApp
from flwr.common import Code, FitIns, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.common.recorddict_compat import fitins_to_recorddict, recorddict_to_fitres

from gdpfed.errors import LearningError


def is_of_client_fn(app: ClientApp) -> bool:
    """Whether an app answers by a ``client_fn``, and not by functions of its own."""
    return type(app).__call__ is ClientApp.__call__ and getattr(app, "_call", None) is not None


def asked_to_fit(arrays: Mapping[str, Any], told: Mapping[str, Any]) -> RecordDict:
    """Return the content of a message that asks a client to fit: its arrays in their order, and settings."""
    return fitins_to_recorddict(
        FitIns(ndarrays_to_parameters([*arrays.values()]), dict(told)), keep_input=True
    )


def fitted_arrays(content: RecordDict, names: list[str]) -> dict[str, Any]:
    """Return the arrays of a client's answer by the names of those that it was asked with, in their order.

    Raises LearningError: the client has no fit, or returns another number of arrays.
    """
    answer = recorddict_to_fitres(content, keep_input=True)
    if answer.status.code != Code.OK:
        raise LearningError(
            f"its client says {answer.status.message or answer.status.code.name}: give it a fit"
        )
    trained = parameters_to_ndarrays(answer.parameters)
    if len(trained) != len(names):
        raise LearningError(
            f"its fit returned {len(trained)} arrays of {len(names)}: return all of the model in their order"
        )
    return dict(zip(names, trained, strict=True))
