"""Tests of the proof in docs/privacy.md that noise which no later round subtracts costs no epsilon.

The noise of T rounds has covariance K = sum over shares i of var_i v_i v_i^T, with v_i = e_t - sum_j a_ij g_j
e_(t+j) and a_ij in {0, 1} whether share i of round t is taken back in round t + j. Every pattern of lost
corrections of few rounds, taps and members is tried, and every set of turns of a client. Nothing is rounded.
"""

from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache, lru_cache
from itertools import chain, combinations, combinations_with_replacement, product
from math import prod

import pytest

from gdpfed.audit.mechanisms.scheduled_sums import moved_by
from gdpfed.privacy.correlated_noise import sensitivity

Matrix = tuple[tuple[Fraction, ...], ...]
Vector = tuple[Fraction, ...]
Bits = tuple[int, ...]
"""Of one share: whether it is taken back 1, 2, ... rounds later, as far as there are rounds."""
Share = tuple[Fraction, Bits]
"""Its variance, and its bits."""

ZERO, ONE = Fraction(0), Fraction(1)
HALF, THIRD = Fraction(1, 2), Fraction(1, 3)
# Rounds, taps and members of a sum.
SIZES = [
    (2, (Fraction(9, 10),), 3),
    (3, (HALF,), 3),
    (3, (ONE,), 2),
    (3, (HALF, THIRD), 2),
    (4, (Fraction(2, 3),), 3),
    (4, (HALF, Fraction(1, 4)), 1),
]
ASKED = pytest.mark.parametrize(("rounds", "taps", "members"), SIZES)
# Directions in the plane, all of length one, exactly.
DIRECTIONS = ((ONE, ZERO), (Fraction(-3, 5), Fraction(4, 5)), (Fraction(5, 13), Fraction(-12, 13)))


def patterns(rounds: int, taps: Sequence[Fraction], t: int) -> list[Bits]:
    """Return all patterns of whether each later round subtracts (1) a noise part of round t, or not (0)."""
    return list(product((0, 1), repeat=min(len(taps), rounds - 1 - t)))


def row(rounds: int, taps: Sequence[Fraction], t: int, bits: Bits) -> Vector:
    """Return, for each round's sum, the coefficient with which a noise part of round t is in that sum."""
    found = [ZERO] * rounds
    found[t] = ONE
    for lag, (tap, bit) in enumerate(zip(taps, bits, strict=False), start=1):
        found[t + lag] = -bit * tap
    return tuple(found)


def covariance(rounds: int, taps: Sequence[Fraction], shares: Sequence[Sequence[Share]]) -> Matrix:
    """Return the covariance between rounds of the total noise, to which the listed noise parts add up."""
    found = [[ZERO] * rounds for _ in range(rounds)]
    for t, of_round in enumerate(shares):
        for variance, bits in of_round:
            v = row(rounds, taps, t, bits)
            for i in range(t, rounds):
                for j in range(t, rounds):
                    found[i][j] += variance * v[i] * v[j]
    return tuple(map(tuple, found))


@lru_cache(maxsize=4096)
def inverse(matrix: Matrix) -> Matrix:
    """Return the exact inverse of a matrix of fractions, by elimination."""
    size = len(matrix)
    rows = [[*each, *(ONE if i == j else ZERO for j in range(size))] for i, each in enumerate(matrix)]
    for i in range(size):
        pivot = next(k for k in range(i, size) if rows[k][i])
        rows[i], rows[pivot] = rows[pivot], rows[i]
        rows[i] = [each / rows[i][i] for each in rows[i]]
        for k in range(size):
            if k != i and rows[k][i]:
                rows[k] = [a - rows[k][i] * b for a, b in zip(rows[k], rows[i], strict=True)]
    return tuple(tuple(each[size:]) for each in rows)


def cost(matrix: Matrix, contributions: Sequence[Vector]) -> Fraction:
    """Return a client's cost: the squared norm of its contributions under the inverse noise covariance."""
    there = [a for a, x in enumerate(contributions) if any(x)]
    inverted = inverse(matrix)
    return sum(
        (
            inverted[a][b]
            * sum((x * y for x, y in zip(contributions[a], contributions[b], strict=True)), ZERO)
            for a in there
            for b in there
        ),
        ZERO,
    )


@cache
def strategy(rounds: int, taps: tuple[Fraction, ...], bits: tuple[Bits, ...]) -> Matrix:
    """Return the strategy matrix (I - N)^-1, where all noise parts of a round are subtracted alike."""
    columns = [row(rounds, taps, t, each) for t, each in enumerate(bits)]
    return inverse(tuple(zip(*columns, strict=True)))


def every_bit(rounds: int, taps: Sequence[Fraction]) -> tuple[Bits, ...]:
    return tuple(patterns(rounds, taps, t)[-1] for t in range(rounds))


@cache
def bound(rounds: int, taps: tuple[Fraction, ...], turns: tuple[int, ...]) -> Fraction:
    """Return the squared sensitivity of a client's turns (scheduled rounds), if no subtraction is lost."""
    whole = strategy(rounds, taps, every_bit(rounds, taps))
    return sum((sum((each[t] for t in turns), ZERO) ** 2 for each in whole), ZERO)


def all_turns(rounds: int) -> Iterator[tuple[int, ...]]:
    """Yield every non-empty set of rounds as a client's turns, which are the rounds in which it sends."""
    return chain.from_iterable(combinations(range(rounds), size) for size in range(1, rounds + 1))


def contributions_of(rounds: int, turns: Sequence[int]) -> Iterator[tuple[Vector, ...]]:
    """Yield contributions of norm one in a client's turns (scheduled rounds): in one or two dimensions."""
    for signs in product((ONE, -ONE), repeat=len(turns) - 1):
        yield tuple((dict(zip(turns, (ONE, *signs), strict=True)).get(t, ZERO),) for t in range(rounds))
    for number in range(len(DIRECTIONS)):
        chosen = {t: DIRECTIONS[(number + place) % len(DIRECTIONS)] for place, t in enumerate(turns)}
        yield tuple(chosen.get(t, (ZERO, ZERO)) for t in range(rounds))


def all_shares(
    rounds: int, taps: Sequence[Fraction], members: int
) -> Iterator[tuple[tuple[Share, ...], ...]]:
    """Yield every pattern of lost corrections (noise not subtracted), up to the order of members."""
    of_rounds = [
        [
            tuple((Fraction(1, members), bits) for bits in chosen)
            for chosen in combinations_with_replacement(patterns(rounds, taps, t), members)
        ]
        for t in range(rounds)
    ]
    return product(*of_rounds)


def vertices(rounds: int, taps: Sequence[Fraction]) -> list[tuple[Bits, ...]]:
    """Return the patterns of lost corrections (noise not subtracted) that are equal for all members."""
    return list(product(*(patterns(rounds, taps, t) for t in range(rounds))))


def vertex_covariance(rounds: int, taps: Sequence[Fraction], bits: tuple[Bits, ...]) -> Matrix:
    return covariance(rounds, taps, [[(ONE, each)] for each in bits])


def is_semidefinite(matrix: Matrix) -> bool:
    """Return whether a matrix is positive semidefinite: none of its principal minors is negative."""
    return all(
        determinant([[matrix[i][j] for j in chosen] for i in chosen]) >= 0
        for chosen in all_turns(len(matrix))
    )


def determinant(rows: list[list[Fraction]]) -> Fraction:
    """Return the determinant, by expansion along the first row."""
    if not rows:
        return ONE
    return sum(
        (
            (-1) ** j * first * determinant([each[:j] + each[j + 1 :] for each in rows[1:]])
            for j, first in enumerate(rows[0])
            if first
        ),
        ZERO,
    )


def mixed(parts: Sequence[tuple[Fraction, Matrix]]) -> Matrix:
    size = len(parts[0][1])
    return tuple(
        tuple(sum((weight * each[i][j] for weight, each in parts), ZERO) for j in range(size))
        for i in range(size)
    )


@ASKED
def test_no_pattern_of_lost_corrections_costs_more_than_none_lost(rounds, taps, members):
    """If corrections of noise are lost, a client's cost is at most the bound, which some pattern reaches."""
    full = dict.fromkeys(all_turns(rounds), ZERO)
    for shares in all_shares(rounds, taps, members):
        matrix = covariance(rounds, taps, shares)
        for turns in full:
            for contributions in contributions_of(rounds, turns):
                paid = cost(matrix, contributions)
                assert paid <= bound(rounds, taps, turns), (shares, contributions)
                full[turns] = max(full[turns], paid)
    assert full == {turns: bound(rounds, taps, turns) for turns in full}


def test_nor_where_shares_are_of_different_size_or_larger_than_owed():
    """The bound on a client's cost holds with unequal or larger noise parts (privacy.md, step (a))."""
    rounds, taps, sizes = 3, (HALF, THIRD), (THIRD, Fraction(5, 3))
    choices = [list(product(patterns(rounds, taps, t), repeat=2)) for t in range(rounds)]
    for chosen in product(*choices):
        shares = [list(zip(sizes, each, strict=True)) for each in chosen]
        matrix = covariance(rounds, taps, shares)
        for turns in all_turns(rounds):
            contributions = next(contributions_of(rounds, turns))
            assert cost(matrix, contributions) <= bound(rounds, taps, turns)


@ASKED
def test_a_pattern_is_a_mean_of_patterns_in_which_members_of_a_round_are_alike(rounds, taps, members):
    """A noise covariance is a mean of those where members lose equal subtractions (privacy.md, step (b))."""
    for shares in list(all_shares(rounds, taps, members))[::3]:
        parts = []
        for bits in vertices(rounds, taps):
            alike = [
                Fraction(sum(each == own for _, each in of_round), members)
                for own, of_round in zip(bits, shares, strict=True)
            ]
            if weight := prod(alike, start=ONE):
                parts.append((weight, vertex_covariance(rounds, taps, bits)))
        assert sum(weight for weight, _ in parts) == 1
        assert mixed(parts) == covariance(rounds, taps, shares)


@pytest.mark.parametrize(("rounds", "taps"), [(3, (HALF, THIRD)), (3, (ONE,)), (4, (Fraction(2, 3),))])
def test_the_inverse_is_operator_convex_between_any_two_of_them(rounds, taps):
    """If members lose the same subtractions, the covariance's inverse is convex (privacy.md, step (b)).

    That the inverse is operator convex on positive definite matrices is a theorem (Bhatia, Matrix Analysis,
    1997, Proposition V.1.6); here every pair of vertices is checked, as the proof uses it on their mixtures.
    """
    found = [vertex_covariance(rounds, taps, bits) for bits in vertices(rounds, taps)]
    for first, second in combinations(found, 2):
        for weight in (THIRD, HALF):
            mean = [(weight, first), (ONE - weight, second)]
            inverses = [(own, inverse(each)) for own, each in mean]
            assert is_semidefinite(mixed([*inverses, (-ONE, inverse(mixed(mean)))]))


@ASKED
def test_where_members_are_alike_no_entry_of_the_strategy_is_above_that_of_nothing_lost(
    rounds, taps, members
):
    """If members lose the same subtractions, no entry of the strategy matrix grows (privacy.md, step (c))."""
    whole = strategy(rounds, taps, every_bit(rounds, taps))
    for bits in vertices(rounds, taps):
        own = strategy(rounds, taps, bits)
        assert all(
            0 <= a <= b
            for first, second in zip(own, whole, strict=True)
            for a, b in zip(first, second, strict=True)
        )
        product_of = tuple(
            tuple(sum((own[k][i] * own[k][j] for k in range(rounds)), ZERO) for j in range(rounds))
            for i in range(rounds)
        )
        assert product_of == inverse(vertex_covariance(rounds, taps, bits))


def conditional(matrix: Matrix, contributions: Sequence[Fraction]) -> list[tuple[Fraction, Fraction]]:
    """Return, for each round, the sum's mean shift by a client and the sum's variance, given earlier sums."""
    found, size = [], len(matrix)
    for t in range(size):
        before = tuple(each[:t] for each in matrix[:t])
        weights = (
            [sum((a * b for a, b in zip(each, matrix[t], strict=False)), ZERO) for each in inverse(before)]
            if t
            else []
        )
        mean = contributions[t] - sum((w * contributions[s] for s, w in enumerate(weights)), ZERO)
        variance = matrix[t][t] - sum((w * matrix[t][s] for s, w in enumerate(weights)), ZERO)
        found.append((mean, variance))
    return found


@ASKED
def test_whoever_chooses_in_view_of_all_sums_so_far_pays_for_the_path_that_was_chosen(rounds, taps, members):
    """A client's cost adds up squared mean shifts over variances, given earlier sums (privacy.md, step (d)).

    A loss changes no earlier sum. So on each path of an adaptive choice, this is one pattern's cost.
    """
    earlier = dict[tuple[object, ...], Matrix]()
    for shares in all_shares(rounds, taps, members):
        matrix = covariance(rounds, taps, shares)
        for t in range(1, rounds + 1):
            # What has been decided by the end of round t - 1, of every share.
            decided = tuple(
                tuple(sorted(bits[: t - 1 - s] for _, bits in of_round))
                for s, of_round in enumerate(shares[:t])
            )
            block = tuple(each[:t] for each in matrix[:t])
            assert earlier.setdefault((t, decided), block) == block
        for turns in list(all_turns(rounds))[-2:]:
            contributions = [ONE if t in turns else ZERO for t in range(rounds)]
            path = conditional(matrix, contributions)
            assert all(variance >= 0 for _, variance in path)
            spent = sum((mean**2 / variance for mean, variance in path), ZERO)
            assert spent == cost(matrix, [(each,) for each in contributions])
            assert spent <= bound(rounds, taps, turns)


def test_what_the_proof_does_not_allow_costs_more():
    """A client's cost exceeds the bound if noise is subtracted twice or a round has too little new noise."""
    rounds, taps, turns = 3, (HALF,), (0, 1, 2)
    contributions = [(ONE,)] * rounds
    at_most = bound(rounds, taps, turns)
    twice: list[list[Share]] = [[(ONE, (2,))], [(ONE, (1,))], [(ONE, ())]]
    assert cost(covariance(rounds, taps, twice), contributions) > at_most
    missing: list[list[Share]] = [[(ONE, (1,))], [(HALF, (1,))], [(ONE, ())]]
    assert cost(covariance(rounds, taps, missing), contributions) > at_most


@ASKED
def test_the_bound_is_what_plans_and_the_audit_charge(rounds, taps, members):
    numbers = tuple(map(float, taps))
    for turns in all_turns(rounds):
        charged = float(bound(rounds, taps, turns))
        assert sensitivity(numbers, turns, rounds) ** 2 == pytest.approx(charged, rel=1e-12)
        assert moved_by(numbers, turns, rounds) ** 2 == pytest.approx(charged, rel=1e-12)
