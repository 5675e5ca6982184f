"""Federated learning under differential privacy, in which each data owner has its own privacy budget.

What stands here is the library: these names stay, and docs/library.md shows what each is for. Secure
aggregation is a package of its own, `secagg`. A name is imported when it is first asked for, so that a plan
needs neither torch nor Flower.
"""

from importlib import import_module
from typing import TYPE_CHECKING

__version__: str

if TYPE_CHECKING:
    from gdpfed.audit.node_audit import audit_node_ledger as audit_node_ledger
    from gdpfed.audit.run_audit import audit_run as audit_run
    from gdpfed.errors import BudgetExhausted as BudgetExhausted
    from gdpfed.errors import FailedError as FailedError
    from gdpfed.errors import GDPFedError as GDPFedError
    from gdpfed.errors import InputError as InputError
    from gdpfed.errors import PrivacyError as PrivacyError
    from gdpfed.learning.data.dataset import Dataset as Dataset
    from gdpfed.learning.prediction import load_model as load_model
    from gdpfed.library import audit_loop as audit_loop
    from gdpfed.library import command as command
    from gdpfed.library import configure as configure
    from gdpfed.library import finished_run as finished_run
    from gdpfed.library import plan as plan
    from gdpfed.library import register as register
    from gdpfed.library import simulate as simulate
    from gdpfed.methods.base import Method as Method
    from gdpfed.privacy.ledgers.client import ClientLedger as ClientLedger
    from gdpfed.privacy.ledgers.server import Ledger as Ledger
    from gdpfed.privacy.ledgers.terms import Terms as Terms
    from gdpfed.privacy.ledgers.terms import terms_of as terms_of
    from gdpfed.privacy.mechanisms.sampled.planner import make_plan as make_plan
    from gdpfed.privacy.plan import PrivacyPlan as PrivacyPlan
    from gdpfed.privacy.planning.groups import Group as Group
    from gdpfed.privacy.promised_loop import Released as Released
    from gdpfed.privacy.promised_loop import TrainingLoop as TrainingLoop
    from gdpfed.privacy.release import NoiseAt as NoiseAt
    from gdpfed.privacy.release import Release as Release
    from gdpfed.privacy.sampling.cohorts import draw_cohorts as draw_cohorts
    from gdpfed.report.finished_run import FinishedRun as FinishedRun

_HOMES = {
    "gdpfed.audit.node_audit": ("audit_node_ledger",),
    "gdpfed.audit.run_audit": ("audit_run",),
    "gdpfed.errors": ("BudgetExhausted", "FailedError", "GDPFedError", "InputError", "PrivacyError"),
    "gdpfed.learning.data.dataset": ("Dataset",),
    "gdpfed.learning.prediction": ("load_model",),
    "gdpfed.library": (
        "audit_loop",
        "command",
        "configure",
        "finished_run",
        "plan",
        "register",
        "simulate",
    ),
    "gdpfed.methods.base": ("Method",),
    "gdpfed.privacy.ledgers.client": ("ClientLedger",),
    "gdpfed.privacy.ledgers.server": ("Ledger",),
    "gdpfed.privacy.ledgers.terms": ("Terms", "terms_of"),
    "gdpfed.privacy.plan": ("PrivacyPlan",),
    "gdpfed.privacy.planning.groups": ("Group",),
    "gdpfed.privacy.mechanisms.sampled.planner": ("make_plan",),
    "gdpfed.privacy.promised_loop": ("Released", "TrainingLoop"),
    "gdpfed.privacy.release": ("NoiseAt", "Release"),
    "gdpfed.privacy.sampling.cohorts": ("draw_cohorts",),
    "gdpfed.report.finished_run": ("FinishedRun",),
}
_HOME_OF = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    if name in _HOME_OF:
        from gdpfed.late_import import packages_needed

        with packages_needed():
            return getattr(import_module(_HOME_OF[name]), name)
    if name != "__version__":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from gdpfed.installed import project_version

    return project_version()


def __dir__() -> list[str]:
    return sorted([*_HOME_OF, "__version__"])
