"""Shows privacy plans (noise, rates, epsilon) on the terminal: one plan with warnings, or a table of many."""

from collections.abc import Sequence

from rich.console import Console

from conf.load import load
from conf.schema import Config
from gdpfed.cli.simulated_run import OWN_DATA
from gdpfed.errors import ConfigError, LearningError, PrivacyError
from gdpfed.methods import METHODS, make_method
from gdpfed.methods.base import Method
from gdpfed.methods.choose_records import chosen_lines
from gdpfed.report.facts import Notes
from gdpfed.report.messages import messages_a_round
from gdpfed.report.party_lines import party_lines
from gdpfed.report.plan_lines import plan_details, plan_warnings
from gdpfed.report.plan_table import EVERYBODY, ComparedPlan, heading, plan_table

ACCOUNTANTS = ("pld", "rdp", "theorem1")
EVERYBODYS_SETTINGS = ("method=idp_fedavg_scale", "privacy.sampling_rate=1", "privacy.noise_taps=0")
"""Norms as budgets allow, every client in every round, and plain noise, which is best then."""
TABLES = ("csv", "parquet")
"""Data sets whose labels a declaration names."""


def show_plan(console: Console, config: Config, method: Method, *, details: bool = False) -> None:
    """Print a plan: heading, table, and notes on chosen settings, parties and the plan's weak points."""
    console.print(heading(method, config.secagg))
    console.print(plan_table(method, details=details, further=plan_details(method.plan, config)))
    _show_notes(console, config, method)


def show_heading(console: Console, config: Config, method: Method) -> None:
    """Print three lines about a run's privacy plan, then notes such as warnings about its weak points."""
    console.print(heading(method, config.secagg))
    _show_notes(console, config, method)


def _show_notes(console: Console, config: Config, method: Method) -> None:
    lines = (
        *chosen_lines(config),
        *party_lines(config, method.plan),
        *plan_warnings(method.plan, config, method.least_members(config)),
    )
    console.print(Notes(lines))


def check_parties(config: Config, overrides: Sequence[str]) -> None:
    """Raise LearningError if neither a table nor a setting says how many parties there are."""
    data = config.dataset
    told = any(override.startswith("dataset.num_clients=") for override in overrides)
    if data.name in TABLES and data.path is None and not told:
        raise LearningError(
            f"dataset.path is not set: name {OWN_DATA[data.name]}, as in dataset.path=/data/mine, or, to "
            "plan without them, how many parties there are, as in dataset.num_clients=4"
        )


def check_model(config: Config, overrides: Sequence[str]) -> None:
    """Raise LearningError for an unknown model or model option, or a loss that does not fit a table's labels.

    Models are made of torch, which takes seconds to import, so a data set's own is left to its run; so are
    the rows of a table, of which only the declaration is read.

    Raises LearningError: names the model, the option, or the loss that does not fit the declared labels.
    """
    if config.dataset.name in TABLES and config.dataset.path is not None:
        from gdpfed.clients.configured import task_of
        from gdpfed.learning.data.tabular import declared_columns
        from gdpfed.learning.labels import labels_of
        from gdpfed.learning.training.loss_checks import check_loss

        task = task_of(config)
        columns = declared_columns(task.source)
        labels = labels_of(columns.label_kind, columns.num_classes, columns.label_shape)
        check_loss(task.loss, labels, task.class_weights)
    if any(override.startswith("dataset.model") for override in overrides):
        from gdpfed.learning.models import check_model as check

        check(config.dataset.model, tuple((config.dataset.model_options or {}).items()))


def load_unit(overrides: Sequence[str]) -> str:
    """Return what a plan with these settings protects: "client" or "record"."""
    return load([override for override in overrides if not override.startswith("method.")]).privacy.unit


def comparison(overrides: Sequence[str], accountants: Sequence[str] = ACCOUNTANTS) -> list[ComparedPlan]:
    """Plan each method, with epsilon against outsiders; for some, also against the server and members.

    Raises ConfigError: overrides that no method takes.
    """
    fixed = ("method=", "privacy.accountant=", "privacy.against=")
    common = [override for override in overrides if not override.startswith(fixed)]
    configured = load(common)
    check_model(configured, common)
    names = [
        name for name, each in METHODS.items().items() if each.unit in (None, "client") and each.compared
    ]
    asked = [
        ("outsiders", name, accountant, [f"method={name}", f"privacy.accountant={accountant}"])
        for name in names
        for accountant in (accountants if name != "fedavg" else accountants[:1])
    ]
    asked += [
        ("everyone", name, "exact", [f"method={name}"])
        for name in names
        if "turns" in METHODS.get(name).goes_with
    ]
    asked.append(("everyone", EVERYBODY, "exact", list(EVERYBODYS_SETTINGS)))
    rows = []
    for against, name, accountant, settings in asked:
        planned = _method_or_reason([*common, *settings, f"privacy.against={against}"])
        messages = 0.0 if isinstance(planned, str) else messages_a_round(planned, configured.secagg)
        rows.append(ComparedPlan(against, name, accountant, planned, messages))
    return rows


def record_comparison(overrides: Sequence[str]) -> list[tuple[str, str, Method | str]]:
    """Plan each record-level method for each way to treat unequal budgets; return names, and plans or errors.

    Raises ConfigError: overrides that no method takes.
    """
    fixed = ("method=", "method.heterogeneous=")
    common = [override for override in overrides if not override.startswith(fixed)]
    check_model(load([*common, "method=dp_sgd"]), common)
    return [
        (name, differs, _method_or_reason([*common, f"method={name}", f"method.heterogeneous={differs}"]))
        for name, method in METHODS.items().items()
        for differs in method.differences
    ]


def comparison_dict(row: ComparedPlan) -> dict[str, object]:
    """Return one entry of the comparison of plans as a dictionary for JSON."""
    entry: dict[str, object] = {"against": row.against, "method": row.name, "accountant": row.accountant}
    if isinstance(row.planned, str):
        return {**entry, "refused": row.planned}
    return {**entry, "messages_a_round": row.messages, **row.planned.describe()}


def record_comparison_dict(name: str, differs: str, planned: Method | str) -> dict[str, object]:
    """Return one entry of the comparison of record-level methods as a dictionary for JSON."""
    outcome: dict[str, object] = {"refused": planned} if isinstance(planned, str) else planned.describe()
    return {"method": name, "differs": differs, **outcome}


def _method_or_reason(overrides: Sequence[str]) -> Method | str:
    try:
        return make_method(load(overrides))
    except (ConfigError, PrivacyError) as error:
        return str(error)
