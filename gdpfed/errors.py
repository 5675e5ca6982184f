"""All errors of this project: bad input, a run that failed, or a spent budget.

Each error's text is one line that names the value at fault and the remedy. Their base is in
:mod:`conf.errors`. `secagg` has errors of its own, since it knows nothing of this project.
"""

import re

from conf.errors import ConfigError, GDPFedError, InputError, either, not_known


def line_of(error: GDPFedError) -> str:
    """Return the line that a user reads of an error: its text, and its kind, a heading of docs/refusals.md.

    What a terminal would take for an order, out of a file or a name that the text quotes, is a blank.
    """
    public = next(each for each in type(error).__mro__ if not each.__name__.startswith("_"))
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", public.__name__.removesuffix("Error"))
    shown = "".join(each if each.isprintable() or each == "\n" else " " for each in str(error))
    return f"{shown} [{words.lower()}]"


class PrivacyError(InputError):
    """A request whose privacy cost cannot be computed, or that differs from what was charged."""


class BudgetExhausted(PrivacyError):  # noqa: N818 - the state is the news, not the error
    """The next round would take a group beyond its budget, so it is not started."""


class LearningError(InputError):
    """Data or a model that cannot be used."""


class ReportError(InputError):
    """Runs that cannot be reported on."""


class ExperimentError(InputError):
    """An experiment that cannot be carried out as asked."""


class FailedError(GDPFedError, RuntimeError):
    """Work that failed although its input was right."""


class RunError(FailedError):
    """A run that cannot start or go on."""


class TrainingOver(RunError):  # noqa: N818 - the state is the news, not the error
    """The purpose of a run is reached or gone before its last round, so no further round begins."""


class AuditError(FailedError, ValueError):
    """Files that cannot be audited at all."""


class LaunchError(FailedError):
    """Flower's processes do not start, or end too early."""


__all__ = [
    "AuditError",
    "BudgetExhausted",
    "ConfigError",
    "ExperimentError",
    "FailedError",
    "GDPFedError",
    "InputError",
    "LaunchError",
    "LearningError",
    "PrivacyError",
    "ReportError",
    "RunError",
    "TrainingOver",
    "either",
    "line_of",
    "not_known",
]
