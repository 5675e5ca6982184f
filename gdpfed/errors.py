"""All errors of gdpfed: bad input, a run that failed, or a spent budget.

Each error's text is one line that names the value at fault and the remedy. Their base is in
:mod:`conf.errors`. `secagg` has errors of its own, since it knows nothing of this project.
"""

import re

from conf.errors import (
    ConfigError,
    GDPFedError,
    InputError,
    either,
    kind_and_words,
    not_known,
    printable,
    words_of,
)


def line_of(error: GDPFedError) -> str:
    """Return an error's text for users, with its kind (a heading in docs/refusals.md) in brackets."""
    public = next(each for each in type(error).__mro__ if not each.__name__.startswith("_"))
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", public.__name__.removesuffix("Error"))
    shown = "\n".join(map(printable, str(error).split("\n")))
    return f"{shown} [{words.lower()}]"


class PrivacyError(InputError):
    """Raised if a privacy cost cannot be computed, or if a request differs from what the ledger recorded."""


class BudgetExhausted(PrivacyError):  # noqa: N818 - the state is the news, not the error
    """Raised if the next round would exceed a group's privacy budget; that round is not started."""


class LearningError(InputError):
    """Raised for data or a model that cannot be used."""


class ReportError(InputError):
    """Raised for runs that cannot be shown in a report."""


class ExperimentError(InputError):
    """Raised for an experiment that cannot be carried out as asked."""


class FailedError(GDPFedError, RuntimeError):
    """Raised if an operation fails although its input is right."""


class RunError(FailedError):
    """Raised if a run cannot start or continue."""


class TrainingOver(RunError):  # noqa: N818 - the state is the news, not the error
    """Raised to end a run early, since its goal is reached or cannot be reached; no further round begins."""


class AuditError(FailedError, ValueError):
    """Raised for files that cannot be audited at all."""


class LaunchError(FailedError):
    """Raised if Flower's processes do not start, or end too early."""


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
    "kind_and_words",
    "line_of",
    "not_known",
    "printable",
    "words_of",
]
