"""Checks of simulated runs against their privacy plan: noise, clipping, clients' rounds and sampling.

A lower bound on epsilon sees a fault only as far as canaries are told apart by it, and some faults hardly
tell: turns a round too close, a correction that is taken twice. These checks look at each thing itself. Each
has a part of the probability of a false alarm that all of them share.
"""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from scipy.linalg import solve_triangular

from gdpfed.audit.mechanisms.scheduled_sums import moved_by
from gdpfed.extras.canaries.noise_tests import (
    MOST_SUMS,
    Floats,
    NoiseStream,
    NoiseTest,
    amount_of_noise,
    length_of_contributions,
    noise_at_lags,
    noise_in_common,
    noise_over_rounds,
)
from gdpfed.extras.canaries.program_check import (
    CONTRIBUTIONS,
    CORRELATION,
    KEYS,
    NOISE,
    SAMPLES,
    TURNS,
    Looked,
    NotComputed,
    ProgramCheck,
)
from gdpfed.extras.canaries.sample_tests import broken_limit, law_of_samples
from gdpfed.extras.canaries.transcript import RevealedSum, Transcript
from gdpfed.privacy.mechanism_options import sampling_rule, taps_of
from gdpfed.privacy.mechanisms.scheduled.mechanism import ScheduledSums, limits_of
from gdpfed.privacy.plan import PrivacyPlan
from gdpfed.privacy.release import ROUNDING

# The rounds of this number of clients are tried.
MOST_TURNS = 128
ONE_RUN_MORE = "more --runs"
COORDINATES_OF_THEIR_OWN = "--kind dirac, in which nobody trains"


def program_checks(runs: Sequence[Transcript], plan: PrivacyPlan, significance: float) -> Looked:
    """Make all checks. If the program follows its plan, a check fails with probability <= `significance`.

    What could not be looked at is in the list as well, with what would compute it.
    """
    observed, mechanism, groups = _Observed(runs, plan), plan.mechanism, range(len(plan.groups))
    # Each takes the largest allowed probability of a false alarm.
    jobs: list[Callable[[float], ProgramCheck | NotComputed]] = [
        partial(_noise_check, observed, name) for name in observed.names
    ]
    if not plan.about_records and plan.num_rounds > 1:
        jobs += [partial(_correlation_check, observed, name) for name in observed.names]
    jobs.append(partial(_keys_check, observed))
    if not plan.about_records:
        jobs += [partial(_contributions_check, observed, m) for m in groups]
    if isinstance(mechanism, ScheduledSums):
        jobs += [partial(_turns_check, observed, m) for m in groups]
    elif plan.sample_is_secret and sampling_rule(mechanism) is None:
        jobs += [partial(_samples_check, observed, m) for m in groups if mechanism.most_rounds(m) is None]
    return [job(significance / len(jobs)) for job in jobs]


@dataclass(frozen=True)
class _Observed:
    """The simulated runs of an audit with canaries, and the noise in their sums."""

    runs: Sequence[Transcript]
    plan: PrivacyPlan

    @cached_property
    def sums(self) -> list[dict[str, dict[int, RevealedSum]]]:
        """The noised sums of each run, by the sum's name (the same in every round) and by round."""
        found: list[dict[str, dict[int, RevealedSum]]] = []
        for transcript in self.runs:
            by_name: dict[str, dict[int, RevealedSum]] = defaultdict(dict)
            for each in transcript.sums:
                by_name[each.name].setdefault(each.round_index, each)
            found.append(dict(by_name))
        return found

    @property
    def names(self) -> list[str]:
        """The names of all released sums, or the single name "all sums" if no sum was released."""
        return sorted({name for by_name in self.sums for name in by_name}) or ["all sums"]

    @property
    def whole(self) -> bool:
        """Whether only canaries contribute to the sums, so that all other coordinates contain only noise."""
        return all(len(transcript.watched) for transcript in self.runs)

    def streams(self, name: str) -> list[NoiseStream]:
        """Return, for each run, the noise of those sums that have this name, one sum in each round."""
        return [self.stream(by_name[name]) for by_name in self.sums if name in by_name]

    def stream(self, sums: Mapping[int, RevealedSum]) -> NoiseStream:
        """Return the noise of one run's sums that share a name; `sums` maps each round to the sum in it."""
        rounds = tuple(sorted(sums))
        values = np.stack([sums[index].pure_noise for index in rounds]).astype(np.float64)
        return NoiseStream(rounds, values, self.root(sums))

    def root(self, sums: Mapping[int, RevealedSum]) -> Floats:
        """Return a square root of the planned covariance of the noise in these sums."""
        first, there = sums[min(sums)], sorted(sums)
        taken_back = np.eye(self.plan.num_rounds)
        if isinstance(self.plan.mechanism, ScheduledSums):
            for lag, tap in enumerate(taps_of(self.plan.mechanism, first.groups[0]), start=1):
                taken_back -= tap * np.eye(self.plan.num_rounds, k=-lag)
        # What a sum that was thrown away carried is taken back nowhere.
        drawn = np.asarray([sums[index].drawn_stddev for index in there])
        return np.asarray(taken_back[np.ix_(there, there)] * drawn)

    def asked_in(self, m: int, name: str) -> list[tuple[int, ...]]:
        """Return the different sets of rounds in which a group's clients were asked for sums of this name."""
        members, found = set(self.plan.groups[m].clients), dict[tuple[int, ...], None]()
        for by_name in self.sums:
            rounds = defaultdict[int, list[int]](list)
            for index, each in sorted(by_name.get(name, {}).items()):
                for client in members.intersection(each.clients):
                    rounds[client].append(index)
            found |= dict.fromkeys(map(tuple, rounds.values()))
        return list(found)[:MOST_TURNS]

    def missing(self, view: str, of: str, why: str, remedy: str = ONE_RUN_MORE) -> NotComputed:
        """Describe a check that was not possible; a cause that concerns all checks replaces `why`."""
        if not any(self.sums):
            why, remedy = "no sum came out", "sums that are not refused"
        elif not self.whole and view not in (TURNS, SAMPLES):
            why, remedy = "other clients train, so a sum is more than noise", COORDINATES_OF_THEIR_OWN
        return NotComputed(view=view, of=of, why=why, remedy=remedy)


def _noise_check(observed: _Observed, name: str, level: float) -> ProgramCheck | NotComputed:
    test = amount_of_noise(observed.streams(name), level) if observed.whole else None
    if test is None:
        return observed.missing(NOISE, name, "a canary is in every coordinate")
    return _of_noise(NOISE, name, test, "less than is planned" if test.p_value <= level else "")


def _correlation_check(observed: _Observed, name: str, level: float) -> ProgramCheck | NotComputed:
    streams, plan = observed.streams(name) if observed.whole else [], observed.plan
    turns = [each for m in range(len(plan.groups)) for each in observed.asked_in(m, name)]
    test = noise_over_rounds(streams, turns, plan.num_rounds, level / 2) if streams and turns else None
    if test is None:
        return observed.missing(CORRELATION, name, "nobody was asked, or a canary is in every coordinate")
    wrong = "" if test.p_value > level / 2 else "the rounds of a client together have less than is planned"
    check = _of_noise(CORRELATION, name, test, wrong)
    lags = noise_at_lags(streams, plan.num_rounds, level / 2)
    if lags is None:
        return check
    if lags.p_value <= level / 2:
        wrong = wrong or f"new noise has a correlation of {lags.correlation:.3f} with that {lags.lag} before"
    return replace(
        check,
        measured=f"{check.measured}; {abs(lags.correlation):.3f} in common",
        would_find=f"{check.would_find}; > {lags.would_find:.3f}",
        wrong=wrong,
    )


def _of_noise(looked_at: str, of: str, test: NoiseTest, wrong: str) -> ProgramCheck:
    return ProgramCheck(
        looked_at=looked_at,
        of=of,
        measured=f"{test.share:.3f} of planned",
        would_find=f"< {test.would_find:.3f}",
        num_values=test.num_values,
        wrong=wrong,
    )


def _keys_check(observed: _Observed, level: float) -> ProgramCheck | NotComputed:
    noise, names = list[Floats](), list[str]()
    for number, by_name in enumerate(observed.sums if observed.whole else ()):
        for name in by_name:
            stream = observed.stream(by_name[name])
            noise += list(stream.white)
            names += [f"{name}, round {index + 1}, run {number + 1}" for index in stream.rounds]
    of = "any two sums" if len(noise) <= MOST_SUMS else f"any two of {MOST_SUMS} sums"
    test = noise_in_common(np.stack(noise[:MOST_SUMS]), level) if noise else None
    if test is None:
        return observed.missing(KEYS, of, "there is one sum, or a canary is in every coordinate")
    first, second = (names[number] for number in test.pair)
    return ProgramCheck(
        looked_at=KEYS,
        of=of,
        measured=f"{abs(test.correlation):.3f} in common",
        would_find=f"> {test.would_find:.3f}",
        num_values=test.num_pairs,
        wrong=f"{first}, and {second} have noise in common" if test.p_value <= level else "",
    )


def _contributions_check(observed: _Observed, m: int, level: float) -> ProgramCheck | NotComputed:
    of, beyond, expected = f"group {m}", list[Floats](), list[Floats]()
    for transcript, by_name in zip(observed.runs, observed.sums, strict=True):
        if not observed.whole:
            break
        ours = np.flatnonzero((transcript.canaries.groups == m) & (transcript.canaries.signs != 0))
        signs = transcript.canaries.signs[ours]
        for sums in by_name.values():
            # By how much each canary's contributions exceed the bound, and the bound, in units of noise.
            there = sorted(sums)
            y, x = np.zeros((2, len(there), len(ours)))
            for row, index in enumerate(there):
                y[row] = sums[index].projections[ours]
                x[row] = sums[index].asked[ours] * observed.plan.groups[m].at(index).clipping_norm
            root = observed.root(sums)
            seen, moved = (solve_triangular(root, each, lower=True) for each in (y * signs - x, x))
            lengths = np.linalg.norm(moved, axis=0)
            asked = lengths > 0
            beyond.append(np.sum(moved * seen, axis=0)[asked] / lengths[asked])
            expected.append(lengths[asked])
    test = (
        length_of_contributions(np.concatenate(beyond), np.concatenate(expected), level) if beyond else None
    )
    if test is None:
        return observed.missing(CONTRIBUTIONS, of, "fewer than three canaries were asked")
    return ProgramCheck(
        looked_at=CONTRIBUTIONS,
        of=of,
        measured=f"{test.length:.2f} norms",
        would_find=f"> {test.would_find:.2f}",
        num_values=test.num_values,
        wrong="longer than the norm that they are clipped to" if test.p_value <= level else "",
    )


def _turns_check(observed: _Observed, m: int, level: float) -> ProgramCheck | NotComputed:
    """Check each client's rounds (turns) against the plan's limits and cost, and against log and ledger."""
    of, wrong = f"group {m}", ""
    limits, most = limits_of(observed.plan)[m], 0
    if not any(observed.sums):
        return observed.missing(TURNS, of, "")
    densest = [number * limits.separation for number in range(limits.most_turns)]
    for transcript in observed.runs:
        members, turns = set(transcript.plan.groups[m].clients), dict[int, list[int]]()
        for index in sorted({each.round_index for each in transcript.sums}):
            of_round = [each.clients for each in transcript.sums if each.round_index == index]
            for client in sorted(members.intersection(set().union(*of_round))):
                turns.setdefault(client, []).append(index)
        most = max(most, *map(len, turns.values()), 0)
        wrong = wrong or broken_limit(turns, limits.most_turns, limits.separation)
        if not wrong:
            taken = {tuple(each) for each in turns.values()}
            cost = {each: moved_by(limits.taps, each, observed.plan.num_rounds) for each in taken}
            most_planned = moved_by(limits.taps, densest, observed.plan.num_rounds) * (1 + ROUNDING)
            dear = [client for client, each in turns.items() if cost[tuple(each)] > most_planned]
            if dear:
                wrong = f"the turns of client {dear[0]} cost more than the densest that are stated"
        wrong = wrong or _unlike_log_or_ledger(transcript, m, turns) or _twice(transcript, m)
    return ProgramCheck(
        looked_at=TURNS,
        of=of,
        measured=f"{most} of {limits.most_turns}, {limits.separation} apart",
        would_find="any other",
        num_values=len(observed.plan.groups[m].clients) * len(observed.runs),
        wrong=wrong,
    )


def _unlike_log_or_ledger(transcript: Transcript, m: int, turns: Mapping[int, Sequence[int]]) -> str:
    """Name a round for which log or ledger do not list the clients that were asked; return "" if none."""
    summed = {each.round_index for each in transcript.sums if m in each.groups}
    for record in transcript.records:
        index = record.round - 1
        if index not in summed or not record.turns:
            continue
        asked = sorted(client for client, rounds in turns.items() if index in rounds)
        if sorted(record.turns[m]) != asked:
            return f"round {record.round} asked {len(asked)} clients, and its log names others"
    taken = transcript.ledger.get("taken")
    if taken is not None:
        for client, rounds in turns.items():
            if not set(rounds) <= set(taken.get(str(client), ())):
                return f"the ledger lacks a turn of client {client}"
    return ""


def _twice(transcript: Transcript, m: int) -> str:
    """Name a sum that was released twice in the same round; return "" if there is none."""
    seen = set[tuple[str, int]]()
    for each in transcript.sums:
        if m in each.groups and (key := (each.name, each.round_index)) in seen:
            return f"the sum of round {key[1] + 1} came out twice"
        seen.add((each.name, each.round_index))
    return ""


def _samples_check(observed: _Observed, m: int, level: float) -> ProgramCheck | NotComputed:
    """Check which clients were sampled in each round and run, against the sampling rate and the log."""
    of, group, wrong = f"group {m}", observed.plan.groups[m], ""
    samples, sizes, rates, ours = [], [], [], frozenset(group.clients)
    for transcript in observed.runs:
        by_round = defaultdict[int, set[int]](set)
        for each in transcript.sums:
            by_round[each.round_index].update(ours.intersection(each.clients))
        members = np.asarray(group.clients)
        samples += [np.isin(members, list(asked)) for asked in by_round.values() if asked]
        for record in transcript.records:
            index, size = (
                record.round - 1,
                record.cohort_sizes[m] - (record.filled[m] if record.filled else 0),
            )
            sizes.append(size)
            rates.append(group.at(index).sampling_rate)
            if by_round.get(index) and len(by_round[index]) != size:
                wrong = f"round {record.round} drew {len(by_round[index])} clients, and its log says {size}"
        wrong = wrong or _twice(transcript, m)
    test = law_of_samples(samples, sizes, rates, level) if sizes else None
    if test is None:
        return observed.missing(SAMPLES, of, "fewer than two samples were drawn")
    if test.p_value <= level:
        wrong = wrong or test.unlikeliest
    return ProgramCheck(
        looked_at=SAMPLES,
        of=of,
        measured=(
            f"rate {test.rate:.3f} of {test.planned:.3f}; {test.shared} in common of {test.expected:.1f}"
        ),
        would_find=f"> {test.would_find_rate:.3f}; {test.would_find_shared}",
        num_values=test.num_samples,
        wrong=wrong,
    )
