"""What a server promises one client before a training: enough for the client to account for it itself."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Self

from gdpfed.errors import PrivacyError
from gdpfed.privacy.events import (
    Adjacency,
    Charge,
    NoiseLaw,
    SampledGaussian,
    Sampling,
    Unit,
    charge_from_dict,
    event_of_round,
    first_charges,
)
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.validation import require_count, require_delta, require_number

Scalar = str | int | float

MOST_NAME_CHARACTERS = 64
MOST_CHARGES = 10_000


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms of one client's group for one run.

    Attributes:
        run: names the run, the same when it is resumed.
        group: index of the client's group in the plan.
        epsilon: what the plan promises the group at `delta`, by its own `accountant`.
        charges: what all rounds of the run cost, in order; the group is sampled in no more rounds.
        first_round: the round, from 0, from which on this client is among those sampled from.
        sums_hidden: whether the server sees sums alone.
        dropout_tolerance: largest fraction of a cohort that may vanish from a sum.
        corrupt_tolerance: fraction of a cohort whose noise is not relied on.
    """

    run: str
    group: int
    epsilon: float
    delta: float
    accountant: str
    charges: tuple[Charge, ...]
    sums_hidden: bool
    first_round: int = 0
    dropout_tolerance: float = 0.0
    corrupt_tolerance: float = 0.0

    def __post_init__(self) -> None:
        for name in ("run", "accountant"):
            value = getattr(self, name)
            if not isinstance(value, str) or not 0 < len(value) <= MOST_NAME_CHARACTERS:
                raise PrivacyError(
                    f"the terms' {name} is {value!r}; give a name of up to {MOST_NAME_CHARACTERS} characters"
                )
        require_count("the terms' group", self.group, at_least=0)
        if not 0 < len(self.charges) <= MOST_CHARGES:
            raise PrivacyError(
                f"the terms hold {len(self.charges)} charges; give from 1 to {MOST_CHARGES}, nothing else "
                "can be accounted"
            )
        if len({charge.unit for charge in self.charges}) > 1:
            raise PrivacyError("the terms' charges are of several units; a run has one")
        if require_count("the terms' first_round", self.first_round, at_least=0) >= self.num_rounds:
            raise PrivacyError(
                f"the terms' first_round is {self.first_round}; it must be below their {self.num_rounds} "
                "rounds"
            )
        require_number("the terms' epsilon", self.epsilon)
        require_delta(self.delta)
        if not isinstance(self.sums_hidden, bool):
            raise PrivacyError(f"the terms' sums_hidden is {self.sums_hidden!r}; give true or false")
        for name in ("dropout_tolerance", "corrupt_tolerance"):
            if not 0.0 <= require_number(f"the terms' {name}", getattr(self, name)) < 1.0:
                raise PrivacyError(f"the terms' {name} is {getattr(self, name)}; it must lie in [0, 1)")

    @property
    def num_rounds(self) -> int:
        """T; the group is sampled in no more rounds."""
        return sum(charge.count for charge in self.charges)

    @property
    def unit(self) -> Unit:
        """Whose presence the charges are about."""
        return self.charges[0].unit

    @property
    def own_charges(self) -> tuple[Charge, ...]:
        """What the rounds cost that this client may be sampled in."""
        return first_charges(self.charges, self.num_rounds, skipped=self.first_round)

    def event(self, round_index: int) -> SampledGaussian:
        """What one round of the group releases; PrivacyError for another kind of event or no such round."""
        event = event_of_round(self.charges, round_index)
        if not isinstance(event, SampledGaussian):
            raise PrivacyError(
                f"the terms' round {round_index} is {event.kind}, which is not a sum over a cohort"
            )
        return event

    def to_scalars(self) -> dict[str, Scalar]:
        """One flat mapping, for a message or a file; the charges, which are nested, are JSON."""
        scalars = {field.name: getattr(self, field.name) for field in fields(self)}
        return scalars | {"charges": json.dumps([charge.to_dict() for charge in self.charges])}

    @classmethod
    def from_scalars(cls, scalars: Mapping[str, Any]) -> Self:
        """Inverse of :meth:`to_scalars`.

        Raises PrivacyError for entries that are missing, unknown or out of range.
        """
        names = {field.name for field in fields(cls)}
        odd = ", ".join(sorted(names ^ set(scalars)))
        if odd:
            raise PrivacyError(f"the terms lack or have unknown entries: {odd}")
        return cls(**{**scalars, "charges": _charges_from(scalars["charges"])})


def _charges_from(text: object) -> tuple[Charge, ...]:
    try:
        entries = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        entries = None
    if not isinstance(entries, list):
        raise PrivacyError("the terms' charges are no JSON list; nothing is agreed to without one")
    return tuple(charge_from_dict(entry) for entry in entries)


def upgraded_scalars(scalars: Mapping[str, Any]) -> dict[str, Any]:
    """Return the terms of a node ledger of version 1, which had one mechanism for all rounds, as charges.

    Raises PrivacyError for entries that are missing or out of range.
    """
    old = {"first_round": 0, **scalars}
    try:
        sampling: Sampling = old.pop("sampling")
        adjacency: Adjacency = old.pop("adjacency")
        noise: NoiseLaw = old.pop("noise")
        event = SampledGaussian(
            sampling=sampling,
            sampling_rate=old.pop("sampling_rate"),
            group_size=old.pop("group_size"),
            noise_stddev=old.pop("noise_stddev"),
            clipping_norm=old.pop("clipping_norm"),
            adjacency=adjacency,
            noise=noise,
        )
        charge = Charge(event=event, count=old.pop("num_rounds"))
    except KeyError as error:
        raise PrivacyError(f"the terms lack or have unknown entries: {error.args[0]}") from None
    return old | {"charges": json.dumps([charge.to_dict()])}


def terms_of(
    plan: PrivacyPlan,
    group_index: int,
    run: str,
    *,
    first_round: int = 0,
    dropout_tolerance: float,
    corrupt_tolerance: float,
) -> Terms:
    """The terms of one group of a plan from a round on, with the tolerances of its sums."""
    return Terms(
        run=run,
        group=group_index,
        epsilon=plan.groups[group_index].epsilon,
        delta=plan.delta,
        accountant=plan.accountant,
        charges=plan.charges(group_index),
        first_round=first_round,
        sums_hidden=plan.sums_hidden,
        dropout_tolerance=dropout_tolerance,
        corrupt_tolerance=corrupt_tolerance,
    )
