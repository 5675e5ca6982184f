"""Test vectors of a client's ledger: actions such as beginning a run, their outcomes, and the epsilons."""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from gdpfed.errors import GDPFedError
from gdpfed.federation.node import budget
from gdpfed.federation.node.ledger_file import locked_ledger
from gdpfed.federation.node.own_budget import Budget, Budgets
from gdpfed.privacy.ledgers.terms import Terms, terms_of
from gdpfed.privacy.ledgers.terms_options import TurnTerms
from gdpfed.privacy.mechanisms.sampled.planner import make_plan
from gdpfed.privacy.mechanisms.scheduled.planner import make_scheduled_plan
from gdpfed.privacy.mechanisms.scheduled.streams import TurnBudget, plan_stream
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.planning.groups import groups_from_shares

ABOUT = (
    "A client's own ledger over all runs. Each step is done in order: it is allowed, or refused and changes "
    "nothing; after it the epsilon of all runs together is as stated."
)

DELTA, ROUNDS, CLIENTS = 1e-5, 8, 12
BEGIN, TURN, TAKE_BACK, PUT_BACK = "begin", "turn", "take back", "put an older copy back"


def _turns_plan(epsilon: float) -> PrivacyPlan:
    asked = TurnBudget(
        groups=groups_from_shares(CLIENTS, (epsilon,)),
        num_rounds=ROUNDS,
        sampling_rate=0.25,
        delta=DELTA,
        clipping_norm=1.0,
    )
    return make_scheduled_plan(asked, plan_stream(asked, turns=(2,)))


def _sampled_plan(epsilon: float) -> PrivacyPlan:
    return make_plan(
        groups=groups_from_shares(CLIENTS, (epsilon,)),
        num_rounds=ROUNDS,
        sampling_rate=0.25,
        clipping_norm=1.0,
        delta=DELTA,
    )


# What each run promises, and the steps: (what, run, round or numbers).
TURNS_OF_TWO = {"a": _turns_plan, "b": _turns_plan}
SAMPLED = {"a": _sampled_plan, "b": _sampled_plan}
Step = tuple[Any, ...]
SEQUENCES: Mapping[str, tuple[float, Mapping[str, Any], Sequence[Step]]] = {
    "turns: no more than k, no closer than b, each once": (
        3.1,
        TURNS_OF_TWO,
        (
            (TURN, "a", 0),
            (BEGIN, "a"),
            (TURN, "a", 1),
            (TURN, "a", 1),
            (TURN, "a", 4),
            (TURN, "a", 0),
            (TURN, "a", 5),
            (TURN, "a", 7),
            (TURN, "a", 8),
        ),
    ),
    "turns: an earlier round is further away, and is one": (
        3.1,
        TURNS_OF_TWO,
        ((BEGIN, "a"), (TURN, "a", 5), (TURN, "a", 0), (TURN, "a", 3)),
    ),
    "turns: noise is taken back once, of a turn that was, in the round of its tap": (
        3.1,
        TURNS_OF_TWO,
        (
            (BEGIN, "a"),
            (TURN, "a", 2),
            (TAKE_BACK, "a", 1, 2),
            (TAKE_BACK, "a", 2, 4),
            (TAKE_BACK, "a", 2, 3),
            (TAKE_BACK, "a", 2, 3),
            (TURN, "a", 7),
            (TAKE_BACK, "a", 7, 8),
        ),
    ),
    "turns: a second run pays what is left, and one beyond it is refused whole": (
        3.1,
        TURNS_OF_TWO,
        ((BEGIN, "a"), (TURN, "a", 0), (TURN, "a", 4), (BEGIN, "b"), (TURN, "b", 0)),
    ),
    "turns: two runs in the budget of both": (
        4.5,
        TURNS_OF_TWO,
        ((BEGIN, "a"), (TURN, "a", 0), (BEGIN, "b"), (TURN, "b", 0), (TURN, "a", 4), (TURN, "b", 4)),
    ),
    "samples: all rounds are charged when a run begins": (
        3.5,
        SAMPLED,
        ((BEGIN, "a"), (TURN, "a", 3), (TURN, "a", 3), (BEGIN, "a"), (BEGIN, "b"), (TURN, "b", 0)),
    ),
    "samples: two runs in the budget of both are a Renyi filter": (
        5.0,
        SAMPLED,
        ((BEGIN, "a"), (TURN, "a", 3), (BEGIN, "b"), (TURN, "b", 0)),
    ),
    "samples: an older ledger that is put back is refused": (
        3.5,
        SAMPLED,
        ((BEGIN, "a"), (TURN, "a", 3), (PUT_BACK, "", 0), (TURN, "a", 4)),
    ),
}
EPSILON_OF_A_RUN = 3.0


def ledger_cases() -> Iterator[dict[str, Any]]:
    """Yield a test case for each sequence of actions, which are carried out on a client's ledger file."""
    for name, (own, plans, steps) in SEQUENCES.items():
        terms = {
            run: terms_of(make(EPSILON_OF_A_RUN), 0, run, dropout_tolerance=0.0, corrupt_tolerance=0.0)
            for run, make in plans.items()
        }
        with tempfile.TemporaryDirectory(prefix="gdpfed-vectors-") as folder:
            yield {
                "name": name,
                "given": {
                    "budget": own,
                    "delta": DELTA,
                    "runs": {run: _in_numbers(each) for run, each in terms.items()},
                    "steps": [dict(zip(_KEYS, each, strict=False)) for each in steps],
                },
                "expected": {"steps": list(_carried_out(Path(folder), own, terms, steps))},
            }


_KEYS = ("do", "run", "round", "in_round")


def _in_numbers(terms: Terms) -> dict[str, Any]:
    """Return a run's conditions (terms) as plain values: privacy event, rounds, limits on participation."""
    (charge,) = terms.charges
    event = charge.event.to_dict()
    numbers = {key: each for key, each in event.items() if key not in ("turns", "num_rounds", "num_sums")}
    turns = terms.turns if isinstance(terms, TurnTerms) else ()
    limits = dict(zip(("most_turns", "separation"), turns, strict=bool(turns)))
    return {**numbers, **limits, "num_rounds": terms.num_rounds}


def _carried_out(
    folder: Path, own: float, terms: Mapping[str, Terms], steps: Sequence[Step]
) -> Iterator[dict[str, Any]]:
    path = folder / "ledger.json"
    budgets: Budgets = {"client": Budget(epsilons=(own,), delta=DELTA, ledger=path)}
    budget.check_ledger(budgets["client"])
    kept = list[bytes]()
    for what, run, *numbers in steps:
        refused = False
        try:
            if what == BEGIN:
                budget.begin(budgets, terms[run])
            elif what == PUT_BACK:
                path.write_bytes(kept[numbers[0]])
                budget.check_ledger(budgets["client"])
            else:
                _sent(path, what, run, numbers)
        except GDPFedError:
            refused = True
        kept.append(path.read_bytes() if path.exists() else b"")
        yield {"refused": refused, **_costs(path)}


def _sent(path: Path, what: str, run: str, numbers: Sequence[int]) -> None:
    with locked_ledger(path, None) as file:
        if what == TURN:
            file.ledger.charge(run, numbers[0])
        else:
            file.ledger.run(run).take_back(*numbers)
        file.save()


def _costs(path: Path) -> dict[str, Any]:
    """Return epsilon of all runs in a ledger, against outsiders and against the server; {} after an error."""
    try:
        with locked_ledger(path, None) as file:
            return {
                "epsilon": file.ledger.epsilon(DELTA),
                "epsilon_against_server": file.ledger.epsilon_against_server(DELTA),
            }
    except GDPFedError:
        return {}
