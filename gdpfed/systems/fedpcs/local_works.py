"""The local work of a FedPCS client, and the privacy unit of its budget.

`full_gradient` is the source's mathematics; `update` and `dp_sgd` are local training with an accounting.
"""

from dataclasses import dataclass
from typing import Any, cast

from conf.schema import Config
from gdpfed.errors import ConfigError
from gdpfed.methods.rates import configured_delta
from gdpfed.privacy.client_budgets import ClientBudgets, epsilon_of_secret_samples, epsilon_of_total
from gdpfed.privacy.events import Adjacency, Unit
from gdpfed.privacy.planning.step_budgets import StepBudgets
from gdpfed.record_steps import NOISED_UPDATE, Work
from gdpfed.systems.fedpcs.node_game import plays_with_nodes


@dataclass(frozen=True, kw_only=True)
class LocalWork:
    """A kind of local work.

    Attributes:
        unit: what its noise protects.
        work: what clients are asked for.
        adjacency: what two neighbouring runs differ in; None for the configured one.
        in_steps: whether its cost is that of steps on batches, and no zCDP by round.
    """

    unit: Unit
    work: Work
    adjacency: Adjacency | None
    in_steps: bool = False


LOCAL_WORKS = {
    "full_gradient": LocalWork(unit="record", work="dp_sgd", adjacency="replace_one"),
    "update": LocalWork(unit="client", work=cast("Work", NOISED_UPDATE), adjacency=None),
    "dp_sgd": LocalWork(unit="record", work="dp_sgd", adjacency="zero_out", in_steps=True),
}


def local_work(config: Config) -> LocalWork:
    """The configured local work.

    Raises:
        ConfigError: settings that have no accounting with it.
    """
    chosen, privacy = config.method.local, config.privacy
    work = LOCAL_WORKS[chosen]
    if privacy.unit != work.unit:
        others = " or ".join(name for name, each in LOCAL_WORKS.items() if each.unit == privacy.unit)
        raise ConfigError(
            f"method=fedpcs with method.local={chosen} protects a {work.unit}, not privacy.unit="
            f"{privacy.unit}: set privacy={work.unit}_level, or method.local={others}"
        )
    if privacy.noise != "gaussian":
        raise ConfigError(
            f"privacy.noise={privacy.noise} is noise that clients share, and each client of method=fedpcs "
            "adds its own: leave privacy.noise=gaussian"
        )
    if plays_with_nodes(config) and chosen != "full_gradient":
        raise ConfigError(
            f"method.types=clients has nodes check paths of full gradients, not of method.local={chosen}: "
            "use method.local=full_gradient, or method.types=configuration"
        )
    if work.in_steps and config.method.client_sampling == "unbiased":
        raise ConfigError(
            "method.client_sampling=unbiased needs the noise that a budget buys, and that of "
            "method.local=dp_sgd is found once the sampling is known: use method.client_sampling=random"
        )
    return work


def adjacency_of(config: Config) -> Adjacency:
    """The adjacency of two neighbouring runs."""
    return local_work(config).adjacency or cast("Adjacency", config.privacy.adjacency)


def paid_by(config: Config, spending: ClientBudgets) -> ClientBudgets:
    """Return the spending unchanged, or converted to steps.

    Raises:
        PrivacyError: budgets for which no noise is sought.
    """
    if not local_work(config).in_steps:
        return spending
    return StepBudgets.of(
        spending,
        steps=config.training.local_steps,
        rate=config.privacy.batch_rate,
        delta=configured_delta(config),
    )


def totals_of(spending: ClientBudgets, delta: float) -> dict[str, Any]:
    """Every client's total cost, in the form of a plan's JSON."""
    inclusions = spending.inclusions()
    most = {"most_epsilon": spending.most_epsilons(delta).tolist()}
    if isinstance(spending, StepBudgets):
        return most | {"expected_steps": (spending.steps * inclusions.sum(axis=0)).tolist()}
    expected = spending.expected_totals().tolist()
    totals = most | {
        "expected_zcdp": expected,
        "expected_epsilon": [epsilon_of_total(rho, delta) for rho in expected],
        "most_zcdp": spending.worst_totals(spending.num_rounds).tolist(),
    }
    if spending.draws == "poisson" and spending.rule is None:
        totals["epsilon_secret_samples"] = [
            epsilon_of_secret_samples(budgets, chances, delta)
            for budgets, chances in zip(spending.budgets.T, inclusions.T, strict=True)
        ]
    return totals
