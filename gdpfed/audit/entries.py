"""Check that plan, ledger and log have no entries but those that a run writes.

An entry that nobody reads could say anything, such as that a run was verified.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from gdpfed.audit.run_files import RunFiles
from gdpfed.audit.unseen_objects import is_own_method
from gdpfed.runs.file_formats import LEDGER_FILE, PLAN_FILE

OF_PLAN = frozenset(
    {
        *("accountant", "adaptive_clipping", "adjacency", "clipping_norm", "delta", "game", "groups"),
        *(
            "held_out",
            "mechanism",
            "noise",
            "norm_histogram",
            "num_rounds",
            "one_sum",
            "private",
            "record_is",
        ),
        *("renyi_orders", "sampling", "sampling_rate", "settings", "sums_hidden", "sums_per_round", "totals"),
        *("unit", "vote", "weighting", "works"),
    }
)
OF_GROUP = frozenset(
    {
        *("charges", "clients", "clipping_norm", "epsilon", "epsilon_accounted", "epsilon_against_members"),
        *("epsilon_against_server", "expected_cohort_size", "noise_multiplier", "noise_variance_multiplier"),
        *("participations_p99", "records", "sampling_rate", "spending", "trust", "turns"),
    }
)
OF_WEIGHTING = frozenset(
    {
        *("reweighting", "group_weights", "keep_fractions"),
        *("noise_magnitude", "effective_step", "noise_per_step"),
    }
)
OF_LEDGER = frozenset(
    {
        *("charged_rounds", "charges", "counts_rho", "held_out_charged", "norm_histogram_charged"),
        *("participations", "plan", "taken", "vote_charged"),
    }
)
OF_ROUND = frozenset(
    {
        *("accuracy", "clipping_norm", "cohort_sizes", "epsilon_against_server", "failures", "filled"),
        *("fraction_within", "groups_in_sums", "loss", "metrics", "noise_shares", "noise_stddevs", "noted"),
        *("reachable", "round", "seconds", "spent_epsilon", "survivors", "taken_back", "turns"),
        "upload_bytes",
    }
)


def check_entries(files: RunFiles) -> Iterator[str]:
    """Yield a line for each part of plan, ledger or log with entries that no run has.

    A plan of a package's method may say more, and so may its groups.
    """
    if is_own_method(files.config):
        yield from _unknown(PLAN_FILE, files.plan, OF_PLAN)
        yield from _unknown(f"the weighting in {PLAN_FILE}", files.plan["weighting"], OF_WEIGHTING)
        for index, group in enumerate(files.plan["groups"]):
            yield from _unknown(f"group {index} in {PLAN_FILE}", group, OF_GROUP)
    yield from _unknown(LEDGER_FILE, files.ledger, OF_LEDGER)
    for record in files.rounds:
        yield from _unknown(f"round {record['round']}", record, OF_ROUND)
        accuracy = record.get("accuracy")
        among = (record.get("metrics") or {}).get("accuracy", accuracy)
        if among != accuracy:
            yield f"round {record['round']} has accuracy {accuracy}, and {among} among its metrics"


def _unknown(whose: str, said: Mapping[str, Any], known: Collection[str]) -> Iterator[str]:
    if unknown := sorted(said.keys() - set(known)):
        yield f"{whose} has entries that no run has: {', '.join(unknown)}"
