"""What a server promises one client before a training: enough for the client to account for it itself."""

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, replace
from math import inf
from typing import Any, Self

from gdpfed.errors import PrivacyError
from gdpfed.privacy.charges import Charge, charge_from_dict, event_of_round, first_charges
from gdpfed.privacy.events import (
    Adjacency,
    Gaussian,
    LocalWindows,
    NoiseLaw,
    RecordEvent,
    SampledGaussian,
    Sampling,
    Unit,
)
from gdpfed.privacy.plan import PrivacyPlan, Work
from gdpfed.privacy.spending import Spending
from gdpfed.privacy.validation import (
    require_choice,
    require_count,
    require_delta,
    require_number,
    require_positive,
    require_rate,
)
from gdpfed.record_steps import RECORD_WORKS

Scalar = str | int | float

UNSAID = ("task", "announced")
"""Entries of terms that are left out where they are empty."""
MOST_NAME_CHARACTERS = 64
MOST_CHARGES = 10_000
MOST_RECORD_GROUPS = 100


@dataclass(frozen=True, kw_only=True)
class RecordTerms:
    """What terms that protect records say besides.

    Attributes:
        num_rounds: T of the run; in how many of them a client pays for steps, the charges say.
        work: dp_sgd, whose noise the client adds to every step, or another one, whose noise is in the sum.
        clipping_norm: C, the bound on the gradient of one record; of windows the unit in which it moves one.
        batch_rates: q of every group of the client's records, the smallest budget first.
        shares: the part of its records that is in each group.
        seed: of the run; it deals out the records to the groups where the data does not say theirs.
        sums_per_round: how many sums a client is in, each with its part of the round's steps.
        most_rounds: a client with a path takes part in no more rounds than these; None where it has none.
    """

    num_rounds: int
    work: Work
    clipping_norm: float
    batch_rates: tuple[float, ...]
    shares: tuple[float, ...]
    seed: int = 0
    sums_per_round: int = 1
    most_rounds: int | None = None

    def __post_init__(self) -> None:
        require_count("the terms' num_rounds", self.num_rounds)
        if self.most_rounds is not None:
            require_count("the terms' most_rounds", self.most_rounds)
        require_count("the terms' seed", self.seed, at_least=0)
        require_count("the terms' sums_per_round", self.sums_per_round)
        require_choice("the terms' work", self.work, RECORD_WORKS)
        require_positive("the terms' clipping_norm of a record", self.clipping_norm)
        for name in ("batch_rates", "shares"):
            values = getattr(self, name)
            if not isinstance(values, list | tuple) or not 0 < len(values) <= MOST_RECORD_GROUPS:
                raise PrivacyError(f"the terms' {name} are {values!r}; give from 1 to {MOST_RECORD_GROUPS}")
            object.__setattr__(self, name, tuple(values))
            for value in values:
                require_rate(f"one of the terms' {name}", value)
        if len(self.batch_rates) != len(self.shares):
            raise PrivacyError(
                f"the terms have {len(self.batch_rates)} batch_rates and {len(self.shares)} shares; give one "
                "of each for every group of records"
            )

    def groups_as(self, other: "RecordTerms") -> bool:
        """Whether every record is in the same group as under other terms."""
        return (self.shares, self.seed) == (other.shares, other.seed)


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms of one client's group for one run.

    Attributes:
        run: names the run, the same when it is resumed.
        group: index of the client's group in the plan.
        epsilon: what the plan promises the group at `delta`, by its own `accountant`.
        charges: what all rounds of the run cost, in order; the group is sampled in no more rounds. Where
            records are protected: what one of the first group of records pays for at most, the dearest
            rounds first. Of a client with a path: the Gaussian mechanism of each round, in their order.
        first_round: the round, from 0, from which on this client is among those sampled from.
        sums_hidden: whether the server sees sums alone.
        dropout_tolerance: largest fraction of a cohort that may vanish from a sum.
        corrupt_tolerance: fraction of a cohort whose noise is not relied on.
        records: says more where records are protected; None where clients are.
        task: names what is trained, so that a round of another task is refused; empty in terms of runs that
            were begun before terms said it.
        announced: names what clients were told before the plan was made; empty where nothing was.
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
    records: RecordTerms | None = None
    task: str = ""
    announced: str = ""

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
            raise PrivacyError("the terms' charges are of several units; a run has one")
        self._check_records()
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

    def _check_records(self) -> None:
        """Refuse terms about records that do not say which steps these pay for."""
        if (self.records is not None) != (self.unit == "record"):
            raise PrivacyError(
                f"the terms charge a {self.unit} and {'have' if self.records else 'lack'} the entry records; "
                "terms about records have it, and no others"
            )
        if self.records is None:
            return
        if self.records.most_rounds is not None:
            self._check_path(self.records)
            return
        steps = {(each.batch_rate, each.noise_multiplier) for each in self._steps_charged}
        windows = {
            (each.bound, each.window_steps) if isinstance(each, LocalWindows) else None
            for each in self._steps_charged
        }
        if len(self._steps_charged) != len(self.charges) or len(steps) != 1 or len(windows) != 1:
            raise PrivacyError(
                "the terms charge a record for something else than steps of DP-SGD with one batch rate and "
                "one noise"
            )
        if self.records.batch_rates[0] != self._steps_charged[0].batch_rate:
            raise PrivacyError("the terms' charges are not those of the first of their batch_rates")

    def _check_path(self, records: RecordTerms) -> None:
        """Refuse a path that does not say, for every round, what one step on all records costs."""
        events = [each.event for each in self.charges]
        if not all(
            isinstance(each, Gaussian)
            and (each.adjacency, each.noise) == ("replace_one", "gaussian")
            and each.clipping_norm == records.clipping_norm
            and each.is_noisy
            for each in events
        ):
            raise PrivacyError(
                "the terms' path charges something else than Gaussian noise under replace_one at their "
                "clipping norm, round by round"
            )
        if sum(each.count for each in self.charges) != records.num_rounds:
            raise PrivacyError(
                f"the terms' path is not one budget for each of their {records.num_rounds} rounds"
            )
        shape = (records.work, records.batch_rates, records.sums_per_round)
        if shape != ("dp_sgd", (1.0,), 1):
            raise PrivacyError(
                "the terms' path is for one step of dp_sgd a round on all records, at batch rate 1"
            )

    @property
    def has_path(self) -> bool:
        """Whether a client pays for the rounds alone that it takes part in, each at its own zCDP."""
        return self.records is not None and self.records.most_rounds is not None

    @property
    def path(self) -> tuple[float, ...]:
        """rho_i^t of every round of a client that has a path: 1 / (2 z^2), z noise over distance."""
        return tuple(
            1 / (2 * each.event.noise_multiplier**2)
            for each in self.charges
            for _ in range(each.count)
            if isinstance(each.event, Gaussian)
        )

    def path_charges(self, rounds: Iterable[int]) -> tuple[Charge, ...]:
        """What these rounds cost a client that has a path."""
        return tuple(
            Charge(event=event_of_round(self.charges, index), count=1, unit="record") for index in rounds
        )

    def dearest_rounds(self, taken: Collection[int] = (), at_most: float = inf) -> tuple[int, ...]:
        """The rounds that a client with a path may take part in at its worst, those taken among them.

        It takes part in as many of the dearest that are left for it as it may, or `at_most`.
        """
        records = self.records
        most = (
            at_most if records is None or records.most_rounds is None else min(at_most, records.most_rounds)
        )
        path = self.path
        left = [index for index in range(self.first_round, self.num_rounds) if index not in taken]
        left.sort(key=lambda index: -path[index])
        return (*taken, *left[: int(max(0, min(len(left), most - len(taken))))])

    @property
    def num_rounds(self) -> int:
        """T; the group is sampled in no more rounds."""
        if self.records is not None:
            return self.records.num_rounds
        return sum(charge.count for charge in self.charges)

    @property
    def unit(self) -> Unit:
        """Whose presence the charges are about."""
        return self.charges[0].unit

    @property
    def own_charges(self) -> tuple[Charge, ...]:
        """What the rounds cost that this client may be sampled in; the record that pays most, of records."""
        if self.has_path:
            return self.path_charges(self.dearest_rounds())
        if self.records is not None:
            return self.step_charges(self.num_steps)
        return first_charges(self.charges, self.num_rounds, skipped=self.first_round)

    @property
    def num_steps(self) -> int:
        """The most steps that this client's records may pay for: those of the rounds that are left for it."""
        if self.has_path:
            return len(self.dearest_rounds())
        left = first_charges(self.charges, self.num_rounds - self.first_round)
        return sum(each.count * each.event.num_steps for each in left if isinstance(each.event, RecordEvent))

    @property
    def window_steps(self) -> int | None:
        """The steps of a window, whose end alone is released; None where every step is."""
        if self.has_path:
            return None
        first = self._steps_charged[0]
        return first.window_steps if isinstance(first, LocalWindows) else None

    @property
    def step_noise(self) -> float:
        """sigma, the noise multiplier that every step on records is accounted with."""
        return self._steps_charged[0].noise_multiplier

    def noise_of_step(self, round_index: int) -> float:
        """The same of a step of one round, which is one of its own where a client has a path."""
        event = event_of_round(self.charges, round_index) if self.has_path else None
        return event.noise_stddev / event.clipping_norm if isinstance(event, Gaussian) else self.step_noise

    def step_charges(self, num_steps: int, record_group: int | None = None) -> tuple[Charge, ...]:
        """What so many steps cost a record of one group; None for the group that is drawn most often.

        Every step has the same noise and, for one record, the same rate: so it does not matter in which
        rounds they are taken. A window counts as a whole.
        """
        if self.records is None or num_steps == 0:
            return ()
        rates = self.records.batch_rates
        rate = max(rates) if record_group is None else rates[record_group]
        if self.window_steps is not None:
            num_steps += -num_steps % self.window_steps
        event = replace(self._steps_charged[0], batch_rate=rate, num_steps=num_steps)
        return (Charge(event=event, count=1, unit="record"),)

    @property
    def _steps_charged(self) -> tuple[RecordEvent, ...]:
        return tuple(each.event for each in self.charges if isinstance(each.event, RecordEvent))

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
        scalars["charges"] = json.dumps([charge.to_dict() for charge in self.charges])
        records = scalars.pop("records")
        for name in UNSAID:
            if not scalars[name]:
                del scalars[name]
        if records is None:
            return scalars
        # Terms of one sum a round are written as they always were.
        values = {
            key: value
            for key, value in asdict(records).items()
            if (key, value) not in (("sums_per_round", 1), ("most_rounds", None))
        }
        return scalars | {"records": json.dumps(values)}

    @classmethod
    def from_scalars(cls, scalars: Mapping[str, Any]) -> Self:
        """Inverse of :meth:`to_scalars`.

        Raises PrivacyError for entries that are missing, unknown or out of range.
        """
        scalars = dict.fromkeys(UNSAID, "") | dict(scalars)
        names = {field.name for field in fields(cls)} - {"records"}
        odd = ", ".join(sorted(names ^ (set(scalars) - {"records"})))
        if odd:
            raise PrivacyError(f"the terms lack or have unknown entries: {odd}")
        read: dict[str, Any] = {**scalars, "charges": _charges_from(scalars["charges"])}
        if "records" in scalars:
            read["records"] = _record_terms_from(scalars["records"])
        return cls(**read)


def _charges_from(text: object) -> tuple[Charge, ...]:
    try:
        entries = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        entries = None
    if not isinstance(entries, list):
        raise PrivacyError("the terms' charges are no JSON list; nothing is agreed to without one")
    return tuple(charge_from_dict(entry) for entry in entries)


def _record_terms_from(text: object) -> RecordTerms:
    try:
        values = json.loads(text) if isinstance(text, str) else None
    except ValueError:
        values = None
    names = {field.name for field in fields(RecordTerms)}
    if not isinstance(values, dict) or set(values) | {"sums_per_round", "most_rounds"} != names:
        raise PrivacyError(f"the terms' records are no JSON mapping of {', '.join(sorted(names))}")
    return RecordTerms(**values)


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
    seed: int = 0,
    client: int | None = None,
    task: str = "",
    announced: str = "",
) -> Terms:
    """The terms of one group of a plan from a round on; tolerances are of its sums, the seed is the run's.

    ``task`` and ``announced`` are the digests of what is trained, and of what clients were told before.

    Where every client spends what it has chosen, they are those of one client, with its path.
    """
    group, records = plan.groups[group_index], None
    charges: tuple[Charge, ...]
    if group.spending is not None:
        if (plan.unit, plan.adjacency) != ("record", "replace_one"):
            raise PrivacyError(
                "a node with a budget of its own checks a path of full gradients, and no other local work: "
                "use method.local=full_gradient, or start nodes without budgets of their own"
            )
        if group.spending.rule is not None:
            raise PrivacyError(
                f"a node with a budget of its own checks a path, and samples of {group.spending.rule} follow "
                "from what clients release beside it: use another method.client_sampling, or gdpfed simulate"
            )
        position = group.clients.index(client)
        charges = _path_of(plan, group.spending, position)
        records = RecordTerms(
            num_rounds=plan.num_rounds,
            work=plan.works[0],
            clipping_norm=plan.clipping_norm,
            batch_rates=(1.0,),
            shares=(1.0,),
            seed=seed,
            most_rounds=group.spending.most_rounds,
        )
    else:
        charges = plan.charges(group_index)
        if group.records is not None:
            records = RecordTerms(
                num_rounds=plan.num_rounds,
                work=plan.works[0],
                clipping_norm=group.records.clipping_norm,
                batch_rates=group.records.batch_rates,
                shares=tuple(each.share for each in group.records.groups),
                seed=seed,
                sums_per_round=plan.sums_per_round,
            )
    return Terms(
        run=run,
        group=group_index,
        epsilon=group.epsilon,
        delta=plan.delta,
        accountant=plan.accountant,
        charges=charges,
        first_round=first_round,
        sums_hidden=plan.sums_hidden,
        dropout_tolerance=dropout_tolerance,
        corrupt_tolerance=corrupt_tolerance,
        records=records,
        task=task,
        announced=announced,
    )


def _path_of(plan: PrivacyPlan, spending: Spending, position: int) -> tuple[Charge, ...]:
    """What every round costs one client that takes part in it, under noise of its own."""
    noise = [float(spending.noise_multipliers(t, plan.distance)[position]) for t in range(plan.num_rounds)]
    return tuple(
        Charge(
            event=Gaussian(
                noise_stddev=each * plan.clipping_norm,
                clipping_norm=plan.clipping_norm,
                adjacency="replace_one",
            ),
            count=1,
            unit="record",
        )
        for each in noise
    )
