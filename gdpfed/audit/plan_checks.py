"""Check that a run's plan follows from its configuration, and respects every client's budget."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from gdpfed.audit.accounting import SampledSums, charges_of, ends_too_soon
from gdpfed.audit.rules import AuditRule, rule_of
from gdpfed.audit.run_files import RunFiles
from gdpfed.audit.tolerances import ROUNDING, SAME_FIGURE
from gdpfed.audit.unseen_objects import is_own_method

REWEIGHTINGS = ("uniform", "squared_participation")
# Groups of settings of which a plan says all that it was made with.
WHOLE_GROUPS = ("privacy", "secagg", "training", "method")
# Settings that a plan takes over from the configuration as they are.
COPIED = ("sampling", "adjacency", "noise", "clipping_norm", "accountant", "sampling_rate")
# Entries of a charge that the plan has, too, and what a charge without one of them is.
STATED = {"adjacency": "zero_out", "sampling": None, "noise": None}
# Methods that clip all clients to the configured norm.
ONE_NORM = ("dp_fedavg", "gdpfed", "gdpfed_op", "gdpfed_plus", "idp_fedavg_sample", "pfa")
# Methods that clip each group to a norm of its own: their mean over a cohort is the configured norm.
MEAN_NORM = ("gdpfed_star", "idp_fedavg_scale")
# What clients compute where it is no update, by method.
OWN_WORK_OF_CLIENTS = {"client_statistics": "client_statistics", "fedpcs": "noised_update"}
SAME_NORM_IN_ALL_ROUNDS = (*ONE_NORM, *MEAN_NORM)


def check_plan(files: RunFiles) -> Iterator[str]:
    """Compare the plan with configuration, client groups and ledger; yield a line for each contradiction."""
    if files.fingerprint() != files.ledger["plan"]:
        yield (
            f"the ledger was opened for plan {str(files.ledger['plan'])[:12]}, but plan.json and "
            f"assignment.json make {files.fingerprint()[:12]}: one of them was changed"
        )
    yield from _check_configuration(files)
    rule, plan = rule_of(files), files.plan
    if plan["private"]:
        # What the plan takes over from the configuration.
        privacy = files.config["privacy"]
        asked = {key: privacy[key] for key in COPIED if key not in rule.free_settings} | {
            "num_rounds": files.config["run"]["num_rounds"]
        }
        asked |= rule.asked
        asked["sums_hidden"] = files.config["secagg"]["mode"] != "off"
        # Older runs, which were all about clients, have no such setting.
        asked["unit"] = privacy.get("unit", "client")
        asked["delta"] = default_delta(files) if privacy["delta"] is None else privacy["delta"]
        for key, value in asked.items():
            if plan[key] != value:
                yield f"plan.json has {key} {plan[key]}, the configuration {value}"
        budgets, stated = rule.asked_budgets, [group["epsilon"] for group in plan["groups"]]
        if isinstance(budgets, list) and stated not in (budgets, [min(budgets)] * len(stated)):
            yield f"plan.json has groups with budgets of {stated}, the configuration {budgets}"
    # The plan's privacy costs against its other numbers, and the ledger's costs against the plan.
    if len(files.ledger["charges"]) != len(plan["groups"]):
        yield f"the ledger has charges of {len(files.ledger['charges'])} groups of {len(plan['groups'])}"
        return
    for index, group in enumerate(plan["groups"]):
        charges = [*group["charges"], *files.ledger["charges"][index]]
        for name in sorted({charge["unit"] for charge in charges} - {plan["unit"]}):
            yield f"group {index} is charged per {name}, the plan protects a {plan['unit']}"
        yield from _check_events(files, index)
        yield from rule.check_ledger(index)
        yield from rule.check_charges(index)
    yield from rule.check_plan()
    yield from _check_weighting(files, rule)
    yield from _check_works(files)
    yield from _check_mean_norm(files)
    yield from _check_assignment(files)
    yield from _check_budgets(files)


def _check_configuration(files: RunFiles) -> Iterator[str]:
    """Check that plan.json was made with the settings that config.yaml has."""
    settings = files.plan.get("settings", {})
    for group, made_with in settings.items():
        now = json.loads(json.dumps(files.config[group]), parse_constant=str)
        whole = now.keys() if group in WHOLE_GROUPS else made_with.keys()
        for key in sorted(made_with.keys() | whole):
            if made_with.get(key) != now.get(key):
                yield (
                    f"plan.json was made with {group}.{key}={made_with.get(key)}, and the configuration has "
                    f"{now.get(key)}"
                )
    for group in WHOLE_GROUPS:
        if group not in settings:
            yield f"plan.json does not say with which settings of {group} it was made"
    if "seed" not in settings.get("run", {}):
        yield "plan.json does not say with which run.seed it was made"


def default_delta(files: RunFiles) -> float:
    """Return the default delta: 1e-5 for records; for n clients, the smaller of 1e-5 and n**-1.1."""
    clients = float(files.config["dataset"]["num_clients"])
    return 1e-5 if files.plan["unit"] == "record" else min(1e-5, clients**-1.1)


def _check_events(files: RunFiles, index: int) -> Iterator[str]:
    """Check that the plan and a group's privacy costs agree on adjacency, sampling, noise and norm."""
    plan, group = files.plan, files.plan["groups"][index]
    events = [charge["event"] for charge in group["charges"]]
    for key, otherwise in STATED.items():
        said = {event.get(key, otherwise or plan[key]) for event in events} - {plan[key]}
        for value in sorted(map(str, said)):
            yield f"group {index} is charged with {key} {value}, and plan.json has {plan[key]}"
    if plan["private"] and ends_too_soon(_single_sums(group["charges"]), plan["delta"], group["epsilon"]):
        yield f"group {index} has noise whose draws end before they cover delta={plan['delta']:g}"
    name = files.config["method"]["name"]
    norms = {event["clipping_norm"] for event in events if "clipping_norm" in event}
    differ = norms and not math.isclose(min(norms), max(norms), rel_tol=SAME_FIGURE)
    if differ and name in SAME_NORM_IN_ALL_ROUNDS:
        yield f"group {index} is charged at clipping norms {min(norms):g} to {max(norms):g}, and has one"
    own, norm = group.get("clipping_norm"), plan["clipping_norm"]
    of_one_norm = name in ONE_NORM and not plan.get("adaptive_clipping")
    if of_one_norm and own is not None and not math.isclose(own, norm, rel_tol=SAME_FIGURE):
        yield f"group {index} has clipping norm {own:g}, and its method one of {norm:g}"


WITH_FIGURES = ("sampled_gaussian", "gaussian", "dp_sgd_steps", "local_windows", "allocated_gaussian")


def _single_sums(saved: Sequence[Mapping[str, Any]]) -> list[tuple[SampledSums, int]]:
    """Return the sums that charges are about; a stream of correlated sums as its turns, each for itself.

    Kinds of events that this audit has no figure for are left to the rule of their mechanism.
    """
    sums = list[tuple[SampledSums, int]]()
    for charge in saved:
        event = charge["event"]
        if event["kind"] != "correlated_gaussian":
            sums += charges_of([charge]) if event["kind"] in WITH_FIGURES else []
            continue
        sigma = event["noise_stddev"] / event["clipping_norm"]
        one = SampledSums("poisson", 1.0, 1, event["adjacency"], event["noise"], sigma)
        sums.append((one, charge["count"] * len(event["turns"])))
    return sums


def _check_mean_norm(files: RunFiles) -> Iterator[str]:
    """Check that the groups' mean clipping norm, weighted by expected cohort size, is the configured one."""
    plan, asked = files.plan, files.config["privacy"]["clipping_norm"]
    if files.config["method"]["name"] not in MEAN_NORM or plan["sampling"] == "allocation":
        return
    groups = plan["groups"]
    norms = [group.get("clipping_norm", plan["clipping_norm"]) for group in groups]
    if plan.get("adaptive_clipping") or not plan["private"] or None in norms:
        return
    mean = float(np.average(norms, weights=[group["expected_cohort_size"] for group in groups]))
    if not math.isclose(mean, asked, rel_tol=SAME_FIGURE):
        yield f"plan.json has clipping norms of groups with a mean of {mean:.6g}, the configuration {asked:g}"


def _check_weighting(files: RunFiles, rule: AuditRule) -> Iterator[str]:
    """Recompute the plan's noise magnitude, step size and noise per step from group weights and norms.

    Lambda is the mean over groups of k_m / d v_m s_m^2, v_m = 1 or r_m^2 / sum_j r_j^2. It is checked where
    the plan says one norm a group.
    """
    plan, said = files.plan, files.plan["weighting"]
    if is_own_method(files.config):
        yield from _check_own_weighting(files)
    if said["reweighting"] not in REWEIGHTINGS:
        yield f"plan.json has weighting.reweighting {said['reweighting']}, which no method has"
    for share in said["keep_fractions"]:
        if not 0 < share <= 1:
            yield f"plan.json keeps a share of {share:g} of a sum, and it must be above 0 and at most 1"
    groups = plan["groups"]
    sizes = np.asarray([group["expected_cohort_size"] for group in groups])
    weights = np.asarray(said["group_weights"])
    expected = {"effective_step": float(weights @ sizes)}
    norms = [group.get("clipping_norm", plan["clipping_norm"]) for group in groups]
    if plan["private"] and None not in norms and plan.get("adaptive_clipping") is None:
        noise = np.asarray([group["noise_multiplier"] for group in groups]) * np.asarray(norms)
        shares = sizes**2 / (sizes**2).sum() if said["reweighting"] != "uniform" else np.ones(len(groups))
        expected["noise_magnitude"] = float(np.mean(said["keep_fractions"] * shares * noise**2))
        kept = [rule.kept_noise(index) for index in range(len(groups))]
        heard = (weights * noise * kept)[: 1 if plan["one_sum"] else None]
        expected["noise_per_step"] = math.hypot(*heard) / float(weights @ (sizes * norms))
    elif not any(group["noise_multiplier"] for group in groups):
        # The noise is in the steps of clients, and sums have none.
        expected |= {"noise_magnitude": 0.0, "noise_per_step": 0.0}
    for key, value in expected.items():
        if not math.isclose(said[key], value, rel_tol=SAME_FIGURE, abs_tol=SAME_FIGURE):
            yield f"plan.json has {key} {said[key]}, where {value:.6g} follows from its weights and noise"


def _check_own_weighting(files: RunFiles) -> Iterator[str]:
    """Check that weights, their rule and the shares that top-k keeps are those of the configured method.

    omega_m is 1 / (q n), or r_m^2 / (q n sum_j r_j^2) where clients that take part more often weigh more.
    """
    plan, said, options = files.plan, files.plan["weighting"], files.config["method"]
    sizes = [group["expected_cohort_size"] for group in plan["groups"]]
    rule = options.get("reweighting", REWEIGHTINGS[0])
    if said["reweighting"] != rule:
        yield f"plan.json has weighting.reweighting {said['reweighting']}, its method {rule}"
    drawn = plan["sampling_rate"] * sum(group["clients"] for group in plan["groups"])
    parts = [1.0] * len(sizes)
    if rule != REWEIGHTINGS[0]:
        parts = [size**2 / math.fsum(each**2 for each in sizes) for size in sizes]
    yield from _check_list("group_weights", said["group_weights"], [part / drawn for part in parts])
    kept = [1.0] * len(sizes)
    if "keep_fraction" in options:
        kept = options["keep_fraction"] or _usually_kept(len(sizes))
    yield from _check_list("keep_fractions", said["keep_fractions"], kept)


def _usually_kept(number: int) -> list[float]:
    """Return the shares that top-k keeps of the groups' sums by default: 0.7 to 0.9, or 0.8 of one group."""
    return [0.8] if number == 1 else np.linspace(0.7, 0.9, number).tolist()


def _check_list(key: str, said: Sequence[float], follows: Sequence[float]) -> Iterator[str]:
    if len(said) != len(follows) or not np.allclose(said, follows, rtol=SAME_FIGURE, atol=0):
        shown = [float(f"{each:.6g}") for each in follows]
        yield f"plan.json has {key} {said}, where {shown} follow from method, rates and groups"


def _check_works(files: RunFiles) -> Iterator[str]:
    """Check that clients computed what the configured method has them compute, where updates are summed.

    Of records the rule of the mechanism says what is computed.
    """
    name, works = files.config["method"]["name"], [*files.plan["works"]]
    if files.plan["unit"] != "client" or not is_own_method(files.config):
        return
    work = OWN_WORK_OF_CLIENTS.get(name, "update")
    # Rates of held-out records come with the updates of the last round.
    if [each for each in works if each != "held_out_rates"] != [work]:
        yield f"plan.json has the local works {works}, and clients of the method {name} compute {work}"


def _check_assignment(files: RunFiles) -> Iterator[str]:
    groups = files.plan["groups"]
    if len(files.clients) != len(groups):
        yield f"assignment.json has {len(files.clients)} groups, plan.json {len(groups)}"
        return
    members = [files.members(index) for index in range(len(groups))]
    for index, (group, ids) in enumerate(zip(groups, members, strict=True)):
        if group["clients"] != len(ids):
            yield f"group {index} has {len(ids)} clients in assignment.json, {group['clients']} in plan.json"
    everybody = np.concatenate(members)
    if len(np.unique(everybody)) != len(everybody):
        yield "assignment.json has a client in two groups"
    expected = files.config["dataset"]["num_clients"]
    if len(everybody) != expected:
        yield f"assignment.json has {len(everybody)} clients, the configuration {expected}"
    strangers = everybody[(everybody < 0) | (everybody >= expected)]
    for client in strangers[:1]:
        yield f"assignment.json has client {client}, and clients are numbered from 0 to {expected - 1}"
    yield from _check_sizes(files, members)


def _check_sizes(files: RunFiles, members: Sequence[npt.NDArray[np.int64]]) -> Iterator[str]:
    """Check that groups of configured budgets follow each other by number, in the configured shares.

    A group has its share of all clients, rounded down; who is left goes to the groups that lost most by that,
    and a group of nobody gets a client of the largest.
    """
    privacy, number = files.config["privacy"], sum(map(len, members))
    if not isinstance(privacy["budgets"], list):
        return
    sizes = [*map(len, members)]
    if [group["epsilon"] for group in files.plan["groups"]] == privacy["budgets"]:
        shares = privacy.get("group_shares") or [1 / len(sizes)] * len(sizes)
        quotas = [number * share / math.fsum(shares) for share in shares]
        follows = [*map(math.floor, quotas)]
        lost = sorted(range(len(sizes)), key=lambda index: follows[index] - quotas[index])
        for index in lost[: number - sum(follows)]:
            follows[index] += 1
        while 0 in follows:
            follows[follows.index(max(follows))] -= 1
            follows[follows.index(0)] += 1
        if sizes != follows:
            yield f"assignment.json has groups of {sizes} clients, where {follows} follow from the shares"
    start = 0
    for index, ids in enumerate(members):
        if not np.array_equal(ids, np.arange(start, start + len(ids))):
            yield f"group {index} has not the clients {start} to {start + len(ids) - 1}, which come next"
            return
        start += len(ids)


def _check_budgets(files: RunFiles) -> Iterator[str]:
    """Check that no client has a smaller budget than its group is planned for."""
    said = files.config["privacy"]["client_budgets"]
    if said is None or len(files.clients) != len(files.plan["groups"]):
        return
    own = np.asarray(said, dtype=float)
    for index, group in enumerate(files.plan["groups"]):
        ids = files.members(index)
        beyond = ids[ids >= len(own)]
        for client in beyond[:1]:
            yield f"client {client} of group {index} has no budget in the configuration"
        known = ids[ids < len(own)]
        if group["epsilon"] is None:
            continue
        for client in known[own[known] < group["epsilon"] * (1 - ROUNDING)][:1]:
            yield (
                f"client {client} has a budget of {own[client]:g}, but group {index}, which it is in, is "
                f"planned for {group['epsilon']:g}"
            )
