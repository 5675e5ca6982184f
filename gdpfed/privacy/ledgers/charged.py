"""Checks requested sums against the round whose privacy cost the ledger has recorded.

A fleet sums only `ChargedSum`s, and only a ledger makes them. So every request of a method is checked against
the plan and the round's cohort before any message leaves. The ledger first copies a request into plain
built-in types. Otherwise an object of a subclass, or an array that other code still holds, could change
between the check and the sum.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from enum import Enum
from typing import Any, Generic, TypeVar

import numpy as np

from gdpfed.errors import PrivacyError
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.release import ROUNDING, CountsRequest, Release, Vector, broken_number
from gdpfed.record_steps import kind_of

R = TypeVar("R", bound=Release)


class ChargedCounts:
    """A request for class counts whose privacy cost the ledger has recorded; it can be used only once."""

    def __init__(self, seal: object, request: CountsRequest) -> None:
        if seal is not SEAL:
            raise PrivacyError(
                "a request for class counts must be charged by a ledger: take it from the ledger, do "
                "not build it"
            )
        self._request = request
        self._is_taken = False

    def take(self) -> CountsRequest:
        """Return the request to the code that collects the counts; raise PrivacyError the second time."""
        if self._is_taken:
            raise PrivacyError("the class counts have been released already; they were charged once")
        self._is_taken = True
        return self._request


class ChargedSum(Generic[R]):
    """A requested sum whose privacy cost the ledger has recorded; it can be summed only once.

    `request`: the request, which was charged. `round_index`: the round in which it was charged.
    """

    def __init__(self, seal: object, request: R, round_index: int) -> None:
        if seal is not SEAL:
            raise PrivacyError(
                f"{request.name}: a sum must be charged by a ledger: take it from the ledger, do not build it"
            )
        self.request = request
        self.round_index = round_index
        self._is_taken = False
        self._charged = tuple(request.clients.tolist()), request.contribution_norms, request.noise_stddev

    def check(self, clients: Sequence[int], norms: Vector, noise_stddev: float) -> None:
        """Raise PrivacyError if a sum's clients, norm bounds or noise break what the ledger recorded.

        `clients`: ids of the clients in the sum. `norms`: a bound on the contribution of each, in the same
        order. `noise_stddev`: the standard deviation of the noise in the sum.
        """
        charged, largest, least_noise = self._charged
        of_sum = f"round {self.round_index}: {self.request.name} is about to be summed"
        if tuple(clients) != charged:
            raise PrivacyError(f"{of_sum} over other clients than were charged")
        if np.any(~(norms <= largest * (1 + ROUNDING))):
            raise PrivacyError(f"{of_sum} with norms up to {norms.max():.6g}, above those that were charged")
        if not noise_stddev >= least_noise * (1 - ROUNDING):
            raise PrivacyError(
                f"{of_sum} with noise of standard deviation {noise_stddev:.6g}, below the {least_noise:.6g} "
                "that were charged"
            )

    def take(self) -> R:
        """Return the request, so that its sum is computed; raise PrivacyError if it was returned before."""
        if self._is_taken:
            raise PrivacyError(
                f"round {self.round_index}: {self.request.name} has been summed already; it was charged once"
            )
        self._is_taken = True
        return self.request


class ExpectedSum(Generic[R]):
    """A request for a sum of the next round, which fits the plan; its privacy cost is not recorded yet.

    `request`: the expected request. `round_index`: the round in which it is expected.
    """

    def __init__(self, seal: object, request: R, round_index: int) -> None:
        if seal is not SEAL:
            raise PrivacyError(
                f"{request.name}: a round's expected sums come from a ledger: take them from it, do not "
                "build them"
            )
        self.request = request
        self.round_index = round_index


SEAL = object()
"""The object that a ledger passes to the classes above, which refuse any other maker."""


class OpenRound:
    """A round whose privacy cost is recorded, or the next round, for which clients have only agreed on keys.

    `index`: the round's number, from 0. `group_of`: the group number of every client that was drawn.
    """

    def __init__(self, plan: PrivacyPlan, index: int, group_of: Mapping[int, int]) -> None:
        self.index = index
        self.group_of = group_of
        self._plan = plan
        self._names: set[str] = set()
        self._sums_of: Counter[int] = Counter()

    def check(self, subject: str, requests: Sequence[Release]) -> None:
        """Check all requested sums of the round; if they pass, remember their names and clients.

        Raises PrivacyError if a request breaks what the round was charged for; the error is one line, which
        names subject, round and request. Then nothing is remembered.
        """
        names, sums_of = set(self._names), Counter(self._sums_of)
        for request in requests:
            if broken := self._broken_rule(request, names, sums_of):
                raise PrivacyError(f"{subject}, round {self.index}, {request.name}: {broken}")
            names.add(request.name)
            sums_of.update(request.clients.tolist())
        self._names, self._sums_of = names, sums_of

    def _broken_rule(self, request: Release, names: set[str], sums_of: Mapping[int, int]) -> str:
        """Return how a request contradicts the cost recorded for the round; "" if it does not."""
        plan = self._plan
        if request.name in names:
            return "the round has a sum of this name already"
        if broken := self._broken_asking(request, sums_of):
            return broken
        if request.work not in plan.works:
            return f"the plan charges {', '.join(plan.works)}, not {request.work}"
        if request.unit != plan.unit:
            return f"the plan protects a {plan.unit}, not a {request.unit}"
        if request.alone and plan.private and (plan.sums_hidden or not kind_of(request.work).own_noise):
            return "it is one client's update, to be read in clear, and the plan promises privacy"
        if broken := broken_number(request):
            return broken
        if not plan.private:
            return ""
        kind = kind_of(request.work)
        protects = kind.on_records or kind.own_noise if plan.about_records else not kind.on_records
        if kind.once or not protects:
            return f"{request.work} is not a work of rounds that protect a {plan.unit}"
        return plan.mechanism.broken_rule(plan.groups, self.group_of, self.index, request)

    def _broken_asking(self, request: Release, sums_of: Mapping[int, int]) -> str:
        """Return why a client in a request may not be in one more sum of the round; "" if all may be."""
        clients, most = request.clients.tolist(), self._plan.sums_per_round
        if len(set(clients)) != len(clients):
            return "a client is asked twice in one sum"
        for client in clients:
            if client not in self.group_of:
                return f"client {client} was not drawn in this round"
            if sums_of[client] >= most:
                return (
                    f"client {client} is in {sums_of[client]} sums of this round already, and the plan "
                    f"charges {most} a round"
                )
        return ""


T = TypeVar("T")
NUMBERS = "iuf"
"""The kinds of array (numpy's letters) that are copied: integers and floating-point numbers."""


class PlainCopies:
    """A copier of a request's values to plain built-in types; an object that occurs twice is copied once.

    Args:
        kinds: the dataclasses that may occur; subclasses of them are refused.
    """

    def __init__(self, *kinds: type) -> None:
        self._kinds = kinds
        self._copies: dict[int, tuple[object, Any]] = {}

    def of(self, value: T, name: str) -> T:
        """Return a copy of a value with plain built-in types and read-only arrays.

        The copy of a number, string or array has the stored value, even if a subclass overrides methods.
        Raises PrivacyError for a value of another type; ``name`` says where the value is.
        """
        if id(value) not in self._copies:
            # The value is kept beside its copy: while it exists, no other object can get its id.
            self._copies[id(value)] = value, self._copied(value, name)
        copied: T = self._copies[id(value)][1]
        return copied

    def _copied(self, value: Any, name: str) -> object:
        if value is None or type(value) is bool or (isinstance(value, Enum) and not isinstance(value, str)):
            return value
        if isinstance(value, str):
            return str.__str__(value)
        if isinstance(value, int):
            return int.__index__(value)
        if isinstance(value, float):
            return float.__float__(value)
        if isinstance(value, np.generic) and value.dtype.kind in NUMBERS:
            return value.item()
        if isinstance(value, np.ndarray) and value.dtype.kind in NUMBERS:
            array = np.array(value, subok=False)
            array.flags.writeable = False
            return array
        if type(value) in self._kinds:
            stored = {each.name: getattr(value, each.name) for each in fields(value)}
            return type(value)(**{key: self.of(each, f"{name}.{key}") for key, each in stored.items()})
        if isinstance(value, Sequence):
            return tuple(self.of(each, f"{name}[{i}]") for i, each in enumerate(value))
        expected = ", ".join(kind.__name__ for kind in self._kinds)
        raise PrivacyError(
            f"{name} is a {type(value).__name__}: give a number, a string, an array of numbers, or one of "
            f"{expected}, not a subclass of it"
        )


def plain_requests(requests: Iterable[T], kinds: Sequence[type], asked: str) -> tuple[T, ...]:
    """Copy requests for sums into plain values, so that nobody can change them after their check.

    `requests`: each of exactly the class ``kinds[0]``. `kinds`: the dataclasses that may occur in requests.
    `asked`: who asks and in which round, for errors. Raises PrivacyError for a request of another class, and
    for a value that is not plain.
    """
    copies, read = PlainCopies(*kinds), list[T]()
    for each in requests:
        if type(each) is not kinds[0]:
            raise PrivacyError(
                f"{asked}: a {type(each).__name__} is not a request for a sum; make a {kinds[0].__name__}, "
                "not a subclass of it"
            )
        read.append(copies.of(each, f"{asked}, request {len(read)}"))
    return tuple(read)
