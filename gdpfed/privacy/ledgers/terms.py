"""The conditions of a run that a server promises a client, from which the client computes its epsilon.

`Terms` holds what all mechanisms promise; each mechanism has a class of its own in its folder, which says
what a run costs this client and which instructions break the promise. What only some terms have is in
`gdpfed.privacy.ledgers.terms_options`. So a node's ledger never asks which they are.
"""

import json
from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, is_dataclass
from math import inf
from typing import Any, ClassVar, Protocol

from gdpfed.errors import PrivacyError
from gdpfed.mechanism_table import by_mechanism
from gdpfed.privacy.charges import Charge, charge_from_dict
from gdpfed.privacy.events import Unit
from gdpfed.privacy.mechanism import PromisedRun
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.sums_once import ONCE
from gdpfed.privacy.validation import require_count, require_delta, require_number
from gdpfed.record_steps import RecordSteps
from gdpfed.registry import Registry

Scalar = str | int | float

UNSAID = ("task", "announced", "held_out_by", "record_is", "dealt_by")
"""Entries of terms that are left out where they are empty."""
MOST_NAME_CHARACTERS = 64
MOST_CHARGES = 10_000
MOST_ROUNDS = 1_000_000
MECHANISM = "mechanism"
"""The entry that names the class of terms."""
PAID_ONCE = tuple(kind.entry for kind in ONCE.values())
"""The entries about sums beside the rounds, left out where there are none; their charges are JSON."""


class Instructions(Protocol):
    """A server's instructions for a sum: the values that a client checks against the run's conditions."""

    @property
    def work(self) -> str: ...

    @property
    def noise(self) -> str: ...

    @property
    def clipping_norm(self) -> float: ...

    @property
    def weight(self) -> float: ...

    @property
    def records(self) -> RecordSteps | None: ...

    @property
    def record_groups(self) -> tuple[tuple[float, ...], int]:
        """The fraction of records in each group, and the seed by which records are assigned to groups."""


@dataclass(frozen=True, kw_only=True)
class Terms(ABC):
    """The conditions of a run that the server promises a client: privacy costs, clipping norm and noise.

    Attributes:
        run: names the run, the same when it is resumed.
        group: index of the client's group in the plan.
        epsilon: what the plan promises the group at `delta`, by its own `accountant`.
        charges: what the run costs, as the mechanism says.
        first_round: the round, from 0, from which on this client is among those sampled from.
        sums_hidden: whether the server sees sums alone.
        dropout_tolerance: largest fraction of a cohort that may vanish from a sum.
        corrupt_tolerance: fraction of all members whose noise is not relied on; a member knows its own.
        task: names what is trained, so that a round of another task is refused.
        announced: names what clients were told before the plan was made; empty where nothing was.
        held_out: what a record pays for that is never trained on, once, after the last round; or nothing.
        vote: what everybody pays for a vote over settings, once, before the first round; or nothing.
        norm_histogram: the same for one histogram of the norms of updates.
        held_out_by: names what decides which records those are, in the words of the node and no server.
        record_is: person, where a record is a person with all its rows, by the node's own columns.
        dealt_by: names what decides, beside shares and seed, in which group each record of the node is; empty
            where all are of one group, or where the node has no data of its own.
    """

    kind: ClassVar[str]
    unit: ClassVar[Unit] = "client"
    """Whose presence the charges of this mechanism are about."""
    pays_by_turn: ClassVar[bool] = False
    """Whether a client pays for the rounds alone that it takes part in."""
    unsaid: ClassVar[tuple[str, ...]] = ()
    """Entries of a mechanism's own that are left out where they are empty, as `UNSAID` are."""

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
    task: str = ""
    announced: str = ""
    held_out: tuple[Charge, ...] = ()
    vote: tuple[Charge, ...] = ()
    norm_histogram: tuple[Charge, ...] = ()
    held_out_by: str = ""
    record_is: str = ""
    dealt_by: str = ""

    def __post_init__(self) -> None:
        for name in ("run", "accountant", *UNSAID):
            value, least = getattr(self, name), int(name not in UNSAID)
            if not isinstance(value, str) or not least <= len(value) <= MOST_NAME_CHARACTERS:
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
            raise PrivacyError(
                "the terms' charges protect units of several kinds, such as clients and records; all "
                "must protect one kind"
            )
        self._check()
        for kind in ONCE.values():
            kind.check(getattr(self, kind.entry), self.charges, self.record_is)
        _check_numbers(self)

    def _check(self) -> None:
        """Raise PrivacyError if the conditions lack what the privacy mechanism needs."""
        if (unit := self.charges[0].unit) != self.unit:
            raise PrivacyError(f"the terms of {self.kind} charge a {unit}, and must charge a {self.unit}")

    @property
    @abstractmethod
    def num_rounds(self) -> int:
        """T: the number of rounds of the run."""

    @abstractmethod
    def updates_in(self, round_index: int) -> int:
        """Return how many updates the client may send in one round."""

    @abstractmethod
    def owed_noise(self, round_index: int) -> float:
        """Return the least noise that a sum of the round must have, as a standard deviation: sigma C."""

    @abstractmethod
    def planned_charges(self, turns: Collection[int] = (), at_most: float = inf) -> tuple[Charge, ...]:
        """Return a client's highest cost if it was in rounds `turns`, and joins at most `at_most` in all.

        Of records it is the one that pays most.
        """

    @abstractmethod
    def spent_charges(
        self, turns: Sequence[int], other: "Terms | None" = None, record_group: int | None = None
    ) -> tuple[Charge, ...]:
        """Return the privacy cost of the rounds in `turns`, for attackers who do not know who was sampled.

        Of records it is one that is in a group of `other` terms, or the one that is drawn most often.
        """

    @abstractmethod
    def seen_charges(self, turns: Sequence[int], steps: int) -> tuple[Charge, ...]:
        """Return the cost against the server: of rounds `turns` or, for protected records, of `steps` steps.

        The server knows the cohorts.
        """

    @abstractmethod
    def broken_by(self, round_index: int, told: Instructions, sum_norm: float) -> str:
        """Return how the server's instructions for a sum break the run's conditions; "" if they do not."""

    @abstractmethod
    def in_words(self, at_most: float = inf) -> str:
        """Return a text on the privacy cost for a client that takes part in at most `at_most` rounds."""

    def to_scalars(self) -> dict[str, Scalar]:
        """Return the conditions as a flat mapping for a message or a file; nested values are JSON."""
        scalars: dict[str, Scalar] = {MECHANISM: self.kind}
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in ("charges", *PAID_ONCE):
                value = json.dumps([charge.to_dict() for charge in value]) if value else ""
            elif is_dataclass(value) and not isinstance(value, type):
                value = json.dumps(asdict(value))
            if value or field.name not in (*UNSAID, *self.unsaid, *PAID_ONCE):
                scalars[field.name] = value
        return scalars

    @classmethod
    def from_scalars(cls, scalars: Mapping[str, Any]) -> "Terms":
        """Read the conditions that `to_scalars` wrote, as an object of their privacy mechanism's class.

        Raises:
            PrivacyError: entries that are missing, unknown or out of range.
        """
        made = TERMS.get(str(scalars.get(MECHANISM)))
        values = (
            dict.fromkeys(UNSAID, "")
            | dict.fromkeys(made.unsaid, "")
            | dict.fromkeys(PAID_ONCE, "[]")
            | {key: each for key, each in scalars.items() if key != MECHANISM}
        )
        odd = ", ".join(sorted({field.name for field in fields(made)} ^ set(values)))
        if odd:
            raise PrivacyError(f"the terms lack entries or have unknown ones: {odd}; run one version on both")
        return made(**made._read(values))

    @classmethod
    def _read(cls, values: dict[str, Any]) -> dict[str, Any]:
        lists = {key: tuple(map(charge_from_dict, json_list(key, values))) for key in ("charges", *PAID_ONCE)}
        return {**values, **lists}


def _check_numbers(terms: Terms) -> None:
    """Raise PrivacyError if a value in the run's conditions is out of range or has the wrong type."""
    if terms.num_rounds > MOST_ROUNDS:
        raise PrivacyError(f"the terms are of {terms.num_rounds} rounds; give at most {MOST_ROUNDS}")
    if require_count("the terms' first_round", terms.first_round, at_least=0) >= terms.num_rounds:
        raise PrivacyError(
            f"the terms' first_round is {terms.first_round}; it must be below their {terms.num_rounds} rounds"
        )
    if not require_number("the terms' epsilon", terms.epsilon) > 0:
        raise PrivacyError(f"the terms' epsilon is {terms.epsilon}; it must be positive")
    require_delta(terms.delta)
    if not isinstance(terms.sums_hidden, bool):
        raise PrivacyError(f"the terms' sums_hidden is {terms.sums_hidden!r}; give true or false")
    for name in ("dropout_tolerance", "corrupt_tolerance"):
        if not 0.0 <= require_number(f"the terms' {name}", getattr(terms, name)) < 1.0:
            raise PrivacyError(f"the terms' {name} is {getattr(terms, name)}; it must lie in [0, 1)")


TERMS: Registry[type[Terms]] = Registry(
    "mechanism",
    "gdpfed.terms",
    built_in=by_mechanism("gdpfed.terms"),
    error=PrivacyError,
)
"""The classes of terms by mechanism, which a message or a file names."""


def json_list(name: str, values: Mapping[str, Any]) -> list[Any]:
    """Return an entry of a run's conditions as a JSON list; raise PrivacyError if it is anything else."""
    try:
        entries = json.loads(values[name]) if isinstance(values[name], str) else None
    except ValueError:
        entries = None
    if not isinstance(entries, list):
        raise PrivacyError(f"the terms' {name} are not a JSON list; nothing is agreed to without one")
    return entries


def terms_of(
    plan: PrivacyPlan,
    group_index: int,
    run: str,
    *,
    dropout_tolerance: float,
    corrupt_tolerance: float,
    client: int | None = None,
    seed: int = 0,
    **said: Any,
) -> Terms:
    """Return the conditions that a plan promises a client or, without `client`, all clients of the group.

    Args:
        plan, group_index, run, dropout_tolerance, corrupt_tolerance: m is the index; of the run and its sums.
        client, seed: whose terms they are, None where all of a group have the same; of the run.
        said: further attributes of `Terms`.
    """
    common = {
        "run": run,
        "group": group_index,
        "delta": plan.delta,
        "accountant": plan.accountant,
        "sums_hidden": plan.sums_hidden,
        "dropout_tolerance": dropout_tolerance,
        "corrupt_tolerance": corrupt_tolerance,
        "held_out": () if plan.held_out is None else (plan.held_out.charge,),
        **({} if plan.first is None else {plan.first.entry: plan.paid_first}),
        **said,
    }
    promised = PromisedRun(plan.num_rounds, common, client, seed)
    return plan.mechanism.terms(group_index, plan.groups[group_index], promised)
