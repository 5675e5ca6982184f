"""The federated learning methods, one per file: each plans privacy, requests sums and updates the model."""

from collections.abc import Callable
from dataclasses import replace

from conf.option_files import hand_in
from conf.schema import Config
from gdpfed.errors import ConfigError, PrivacyError
from gdpfed.methods.base import ClientSum, Method, RunOption, SumRequest
from gdpfed.methods.norm_histogram import refuse_norm_histogram, refuse_unplanned
from gdpfed.methods.party_budgets import configured_parties, resolve_budgets
from gdpfed.methods.rates import configured_delta
from gdpfed.methods.vote import refuse_vote
from gdpfed.privacy.planning.groups import exposure, paper_delta
from gdpfed.privacy.planning.plan_extensions import with_held_out
from gdpfed.privacy.sampling.cohorts import reveals_sizes
from gdpfed.registry import Registry

METHODS: Registry[type[Method]] = Registry(
    "method",
    "gdpfed.methods",
    built_in={
        "ali_dpfl": "gdpfed.methods.ali_dpfl:ALIDPFL",
        "dp_fedavg": "gdpfed.methods.fedavg:DPFedAvg",
        "dp_sgd": "gdpfed.methods.dp_sgd:DPSGD",
        "dp_sum": "gdpfed.methods.dp_sum:DPSum",
        "fedavg": "gdpfed.methods.fedavg:FedAvg",
        "gdpfed": "gdpfed.methods.gdpfed:GDPFed",
        "gdpfed_op": "gdpfed.methods.gdpfed:GDPFedOp",
        "gdpfed_plus": "gdpfed.methods.gdpfed:GDPFedPlus",
        "gdpfed_star": "gdpfed.methods.shared_noise:GDPFedStar",
        "idp_fedavg_sample": "gdpfed.methods.shared_noise:IDPFedAvgSample",
        "idp_fedavg_scale": "gdpfed.methods.shared_noise:IDPFedAvgScale",
        "pfa": "gdpfed.methods.pfa:PFA",
    },
    error=ConfigError,
)
"""Every method that can be chosen; one is imported when it is asked for."""

CLIENT_COUNTS: Registry[Callable[[str | None, str | None], int]] = Registry(
    "data set that says how many clients it has",
    "gdpfed.client_counts",
    built_in={"csv": "gdpfed.learning.data.party_files:counted_parties"},
    error=ConfigError,
)
"""From ``dataset.path`` and ``dataset.columns`` to the number of parties that they name."""

hand_in(
    methods=METHODS,
    option_packages=Registry("option package", "gdpfed.conf", error=ConfigError),
    client_counts=CLIENT_COUNTS,
)


def methods_with(*options: RunOption) -> str:
    """Return, for an error message, the names of the methods that support at least one of these options."""
    items = METHODS.items().items()
    return ", ".join(name for name, method in items if any(option in method.goes_with for option in options))


def resolve(config: Config) -> Config:
    """Return the configuration with values, from public numbers, for the settings that were left open.

    Raises ConfigError, PrivacyError: as :func:`make_method`.
    """
    method, privacy, options = METHODS.get(config.method.name), config.privacy, config.method
    if privacy.against == "auto" or not method.private:
        # An edge's clients are in more than one federation, and counts on held-out records are not an update.
        alone = config.run.mailbox is None and config.run.evaluation == "server"
        planned = "turns" in method.goes_with and config.privacy.unproved_of_turns is None and alone
        wanted = config.dataset.against == "everyone" or method.usually_against_everyone
        privacy = replace(privacy, against="everyone" if planned and wanted else "outsiders")
    if options.average == "auto":
        average = "polynomial" if privacy.against == "everyone" else "none"
        options = replace(options, average=average)
    config = replace(config, privacy=privacy, method=options)
    return method.resolve(
        resolve_budgets(config, one_sum=method.unit == "record" or "adaptive clipping" in method.goes_with)
    )


def make_method(config: Config) -> Method:
    """Make the configured method with its privacy plan, after choosing the settings that are left open.

    Raises:
        ConfigError: an unknown method, or options of another one.
        PrivacyError: a plan that has no valid accounting or that no noise can reach.
    """
    config = resolve(config)
    method = METHODS.get(config.method.name)
    _refuse_beside(config, method)
    try:
        return _planned(method, config)
    except PrivacyError as error:
        if (hint := _hint_of_larger_delta(method, config)) is None:
            raise
        raise PrivacyError(f"{error}. {hint}") from None


def _hint_of_larger_delta(method: type[Method], config: Config) -> str | None:
    """Return a hint if a failed plan would be possible with the GDPFed paper's larger delta; else None."""
    number, usual = config.dataset.num_clients, configured_delta(config)
    larger = f"{paper_delta(number):.3g}"
    if config.privacy.delta is not None or config.privacy.about_records or float(larger) <= usual:
        return None
    try:
        _planned(method, replace(config, privacy=replace(config.privacy, delta=float(larger))))
    except PrivacyError:
        return None
    return (
        f"There is no such plan with delta {usual:g}, the default for {number} clients, and there is one "
        f"with privacy.delta={larger}, which protects less: it allows that one of {number} clients is "
        f"exposed outright with {100 * exposure(number, float(larger)):.0f} %"
    )


def _refuse_beside(config: Config, method: type[Method]) -> None:
    """Raise ConfigError if the method does not support a setting; these checks need no privacy plan."""
    if method.unit not in (None, config.privacy.unit):
        raise ConfigError(
            f"method={config.method.name} protects a {method.unit}, not privacy.unit={config.privacy.unit}: "
            f"set privacy.unit={method.unit}, or privacy={method.unit}_level, which sets the rest"
        )
    if config.privacy.clipping == "adaptive" and "adaptive clipping" not in method.goes_with:
        able = methods_with("adaptive clipping")
        raise ConfigError(
            f"privacy.clipping=adaptive does not go with method={config.method.name}: it scales all norms "
            f"by one factor, so a round must have one sum, as {able} have: use one, or privacy.clipping=fixed"
        )
    if config.privacy.against == "everyone" and "turns" not in method.goes_with:
        raise ConfigError(
            f"privacy.against=everyone does not go with method={config.method.name}: it schedules rounds "
            f"and correlated noise for sums of updates, as {methods_with('turns')} have: use one of them, or "
            "privacy.against=outsiders"
        )
    if not ("any optimizer" in method.goes_with or config.training.is_sgd):
        raise ConfigError(
            f"method={config.method.name} is made for steps of SGD: set training.optimizer=sgd, "
            "training.optimizer_options=null and training.proximal=0, or take another method"
        )
    if config.training.client_state is not None:
        if "client state" not in method.goes_with:
            able = methods_with("client state")
            raise ConfigError(
                f"training.client_state={config.training.client_state} does not go with "
                f"method={config.method.name}: it needs plain sums of updates, as {able} have: use one of "
                "them, or training.client_state=null"
            )
        if config.training.vote is not None:
            raise ConfigError(
                f"training.client_state={config.training.client_state} does not go with training.vote, whose "
                "trials do not use it: leave out one of them"
            )
    if config.training.vote is not None:
        refuse_vote(config, method)
    if config.privacy.norm_histogram_share is not None:
        refuse_norm_histogram(config)


UNPROVED_OF_STATES = {
    "fixed_size": "tell a client who was drawn with it",
    "allocation": "tie the rounds of a block together, and no proof of ours covers that",
}
"""Sampling laws under which states that clients keep have no proof, and why."""
ALLOCATED = "dp_fedavg, pfa, idp_fedavg_* and gdpfed*"


def _planned(method: type[Method], config: Config) -> Method:
    """Make the method with its privacy plan, including the cost of sums outside the training rounds."""
    made = method.from_config(config)
    plan = made.plan
    if config.privacy.against == "everyone" and plan.private and not plan.mechanism.against_everyone:
        raise ConfigError(
            f"method={config.method.name} has 'turns' in its goes_with, and its plan holds against outsiders "
            "alone: its from_config must take the plan of planned(config), which calls its make_turn_plan; "
            "or use privacy.against=outsiders"
        )
    default = (method.requests, method.round) == (Method.requests, Method.round)
    if plan.private and plan.one_sum and len(plan.groups) > 1 and default:
        raise ConfigError(
            f"the plan of method={config.method.name} is one sum over all {len(plan.groups)} groups, and the "
            "method asks for a sum of each group, every one with the noise of all: it must extend "
            "SharedNoise of gdpfed.methods.shared_noise, or have its own requests"
        )
    if config.privacy.norm_histogram_share is not None:
        refuse_unplanned(config, plan)
    if config.privacy.sampling == "allocation" and plan.mechanism.kind != "allocated_sums":
        raise ConfigError(
            f"privacy.sampling=allocation does not go with method={config.method.name}: it is for sums of "
            f"updates with a rate for each group, as {ALLOCATED} have: use one, or privacy.sampling=poisson"
        )
    unproved = UNPROVED_OF_STATES.get(plan.law.name)
    if config.training.client_state is not None and plan.private and unproved is not None:
        raise PrivacyError(
            f"training.client_state={config.training.client_state} is not proved for "
            f"privacy.sampling={plan.law.name}: the states that clients keep {unproved}. Use "
            "privacy.sampling=poisson, or privacy.against=everyone"
        )
    if configured_parties(config) and plan.mechanism.kind != "record_sums":
        raise ConfigError(
            f"the columns of dataset.path={config.dataset.path} name persons, and "
            f"method={config.method.name} does not clip by person: use dp_sum, dp_sgd, ali_dpfl, mr_mtl "
            "or trees, or privacy.unit=client"
        )

    if configured_parties(config):
        made.plan = replace(made.plan, record_is="person")
    if config.run.evaluation != "server":
        made.plan = with_held_out(made.plan, by_party=config.run.evaluation_by_party)
    if config.secagg.same_size and reveals_sizes(made.plan, same_size=True):
        raise PrivacyError(
            f"privacy.sampling={made.plan.law.name} cannot give all sums the same number of clients, as "
            "secagg.same_size=true asks: whoever sees the models can tell this number, and epsilon does not "
            "count it. If it may be known, set secagg.same_size=false; else use privacy.sampling=poisson"
        )
    return made


__all__ = ["METHODS", "ClientSum", "Method", "SumRequest", "make_method", "resolve"]
