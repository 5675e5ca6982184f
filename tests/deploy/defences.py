"""Take away one defence at a time, and see that the test of its fault fails.

Each works on a copy of the checkout, so that nothing here is changed. A minute or two each on the real
topology, and less for faults of streams of noise and for strangers at a gate or a guard:

    python -m tests.deploy.defences [NAME ...]
"""

import argparse
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.progress import track

from testing.project import PROJECT
from tests.deploy import faulty_app
from tests.deploy.faulty_app import copy_of_project

FOLDERS = (*faulty_app.FOLDERS, "deploy", "docs", "testing", "tests")
FILES = (*faulty_app.FILES, "docker-compose.yml")
PASSED, FAILED = 0, 1


@dataclass(frozen=True)
class Defence:
    """Code that protects against one fault, and the test that must fail if this code is removed.

    Attributes:
        name: of the fault.
        test: what must fail without the defence, as file::test, the file below tests/.
        removals: file, code that occurs once in it, and what takes its place. Where the defence is Flower's
            own and cannot be taken away, the test no longer commits its fault.
    """

    name: str
    test: str
    removals: tuple[tuple[str, str, str], ...]


DEADLINE = ("server_app/exchange.py", "messages.values(), self.timeout_seconds,", "messages.values(), 1e9,")
ERRORS_TOLERATED = (
    "server_app/exchange.py",
    "            if reason is None:\n",
    "            if reply.has_error():\n                raise OSError(reason)\n"
    "            if reason is None:\n",
)
DEFENCES = (
    Defence(
        "kind-of-a-data-error",
        "federation/node/test_data_at_nodes.py::test_a_server_learns_of_no_kind_of_error",
        (
            (
                "gdpfed/federation/node/known_data.py",
                "    except Exception as error:",
                "    except OSError as error:",
            ),
        ),
    ),
    Defence(
        "memory-of-persons-after-the-charge",
        "learning/test_persons.py::test_no_person_decides_how_much_memory_the_others_take",
        (("gdpfed/learning/data/own.py", "        _by_person(train, own.path)\n", "        pass\n"),),
    ),
    Defence(
        "memory-of-the-largest-person",
        "learning/test_persons.py::test_no_person_decides_how_much_memory_the_others_take",
        (
            (
                "gdpfed/learning/data/own.py",
                "    return _by_person(every, path)\n",
                "    every = _by_person(every, path)\n    return every.take(np.arange(len(every)))\n",
            ),
        ),
    ),
    Defence(
        "copies-only-with-blank-examples",
        "server_app/test_own_data.py::"
        "test_no_label_decides_how_much_memory_examples_take_nor_how_they_lie_in_it",
        (
            (
                "gdpfed/learning/data/own.py",
                "    own = replace(own, x=own.x.copy(), y=own.y.copy())\n",
                "    if blank.any():\n        own = replace(own, x=own.x.copy(), y=own.y.copy())\n",
            ),
        ),
    ),
    Defence(
        "app-without-training",
        "flower/test_private_client.py::test_arguments_of_another_kind_are_refused_in_one_line",
        (
            (
                "gdpfed/flower/client.py",
                "    if plain and functions is not None and WHOLE_UPDATE not in functions:\n",
                "    if False:\n",
            ),
        ),
    ),
    Defence(
        "evaluation-that-is-none",
        "flower/test_private_client.py::test_what_cannot_be_is_refused_in_one_line_before_anything_is_asked",
        (
            (
                "gdpfed/flower/strategy.py",
                "                watch.evaluate_first(initial_arrays)\n",
                "                pass\n",
            ),
        ),
    ),
    Defence(
        "figures-of-another-model",
        "rounds/test_extensions.py::test_what_is_said_of_a_run_is_said_of_the_model_that_it_released",
        (
            (
                "gdpfed/rounds/run.py",
                "        if np.array_equal(of_last_round, released):\n",
                "        if True:\n",
            ),
        ),
    ),
    Defence(
        "rounds-mixed-in-a-sum",
        "federation/node/test_noise_asked_back.py::"
        "test_members_of_one_sum_cannot_be_told_other_rounds_or_runs_than_it_is_of",
        (
            (
                "gdpfed/federation/node/sum_stages.py",
                '    if run != round_of_run.run or of_round != f"{ROUND_OF_LABEL}{round_of_run.index}":\n',
                "    if False:\n",
            ),
        ),
    ),
    Defence(
        "sum-without-noise",
        "federation/node/test_record_budget.py::test_a_sum_of_gradients_beyond_the_terms_is_refused",
        (
            (
                "gdpfed/federation/node/budget.py",
                "    stddev = parameters.noise_stddev\n",
                "    stddev = parameters.noise_multiplier * parameters.clipping_norm\n",
            ),
            (
                "gdpfed/federation/node/budget.py",
                "    if not stddev >= least * (1 - ROUNDING):\n",
                "    if stddev < least * (1 - ROUNDING):\n",
            ),
        ),
    ),
    Defence(
        "statistics-weighted",
        "extras/statistics/test_statistics.py::test_no_weight_lets_a_record_count_for_more",
        (
            (
                "gdpfed/extras/statistics/record_work.py",
                "    if not moves <= left:\n",
                "    if not moves <= left * order.weight:\n",
            ),
        ),
    ),
    Defence(
        "session-ended-twice",
        "federation/node/test_session_file.py::test_of_two_processes_that_end_a_session_one_answers",
        (
            (
                "gdpfed/federation/node/sessions.py",
                "    if then is None and not _delete(node, kept):\n",
                "    if then is None and _delete(node, kept) is None:\n",
            ),
        ),
    ),
    Defence(
        "clear-against-the-terms",
        "federation/node/test_record_budget.py::"
        "test_an_edge_that_is_trusted_sees_updates_only_if_the_terms_and_so_the_ledger_say_so",
        (
            (
                "gdpfed/federation/node/budget.py",
                "and (terms.sums_hidden or not edge_trusted):\n",
                "and not edge_trusted:\n",
            ),
        ),
    ),
    Defence(
        "entries-that-make-events-free",
        "audit/test_second_accounting.py::test_an_event_that_no_program_writes_is_refused",
        (("gdpfed/audit/accounting.py", "    check_charges(saved)\n", ""),),
    ),
    Defence(
        "events-of-another-mechanism",
        "audit/test_renewed_seals.py::test_no_event_has_entries_or_a_kind_that_make_it_cheaper",
        (("gdpfed/audit/run_audit.py", "        rule.refuse_other_events()\n", ""),),
    ),
    Defence(
        "own-noise-by-the-plan-alone",
        "audit/test_renewed_seals.py::test_what_a_file_says_follows_from_others",
        (("gdpfed/audit/mechanisms/record_sums.py", '**({"works": [work]} if work else {})', ""),),
    ),
    Defence(
        "trust-by-the-plan-alone",
        "simulation/test_subnets.py::test_what_was_changed_in_the_files_is_named",
        (
            (
                "gdpfed/extras/h2fdp/audit.py",
                'if _mechanism(files) == "step_local":',
                'if files.plan["works"] == ["dp_sgd"]:',
            ),
        ),
    ),
    Defence(
        "bound-by-the-plan-alone",
        "simulation/test_subnets.py::test_what_was_changed_in_the_files_is_named",
        (
            (
                "gdpfed/extras/h2fdp/audit.py",
                "            if bound != BOUNDS.get(work):\n",
                "            if False:\n",
            ),
        ),
    ),
    Defence(
        "sums-by-the-plan-alone",
        "simulation/test_subnets.py::test_what_was_changed_in_the_files_is_named",
        (
            (
                "gdpfed/extras/h2fdp/audit.py",
                '{"sums_per_round": _sums_per_round(self.files)}',
                '{"sums_per_round": self.plan["sums_per_round"]}',
            ),
        ),
    ),
    Defence(
        "steps-by-the-plan-alone",
        "simulation/test_subnets.py::test_what_was_changed_in_the_files_is_named",
        (
            (
                "gdpfed/extras/h2fdp/audit.py",
                'sorted({charge["event"]["num_steps"] for charge in group["charges"]} - {taken})',
                "()",
            ),
        ),
    ),
    Defence(
        "norms-of-records-by-the-plan-alone",
        "simulation/test_subnets.py::test_what_was_changed_in_the_files_is_named",
        (
            (
                "gdpfed/extras/h2fdp/audit.py",
                '            if records["clipping_norm"] < move * (1 - ROUNDING):\n',
                "            if False:\n",
            ),
        ),
    ),
    Defence(
        "norms-of-record-budgets-edited",
        "audit/test_record_audit.py::test_what_was_changed_is_named",
        (
            (
                "gdpfed/audit/mechanisms/record_sums.py",
                "            norm *= inverse[index] * sum(clients) / math.fsum(map(mul, clients, inverse))\n",
                '            norm = float(self.records(index)["clipping_norm"])\n',
            ),
        ),
    ),
    Defence(
        "budgets-of-records-edited",
        "audit/test_record_audit.py::test_what_was_changed_is_named",
        (
            (
                "gdpfed/audit/mechanisms/record_sums.py",
                "            if said != asked:\n",
                "            if False:\n",
            ),
        ),
    ),
    Defence(
        "weights-of-groups-edited",
        "audit/test_renewed_seals.py::test_what_a_file_says_follows_from_others",
        (
            (
                "gdpfed/audit/plan_checks.py",
                "        yield from _check_own_weighting(files)\n",
                "        pass\n",
            ),
        ),
    ),
    Defence(
        "shares-of-sums-edited",
        "audit/test_renewed_seals.py::test_what_a_file_says_follows_from_others",
        (("gdpfed/audit/plan_checks.py", "if not 0 < share <= 1:", "if not share <= 1:"),),
    ),
    Defence(
        "work-of-clients-renamed",
        "audit/test_code_of_packages.py::test_no_line_goes_away_with_the_name_of_the_work",
        (("gdpfed/audit/plan_checks.py", "    yield from _check_works(files)\n", ""),),
    ),
    Defence(
        "code-of-packages-unnamed",
        "audit/test_code_of_packages.py::test_whatever_is_not_the_projects_is_named",
        (("gdpfed/audit/unseen_objects.py", "name not in own_names(kind):", "False:"),),
    ),
    Defence(
        "clients-numbered-anew",
        "audit/test_renewed_seals.py::test_clients_have_their_numbers",
        (
            (
                "gdpfed/audit/plan_checks.py",
                "(everybody < 0) | (everybody >= expected)",
                "everybody != everybody",
            ),
        ),
    ),
    Defence(
        "clients-in-other-groups",
        "audit/test_renewed_seals.py::test_groups_of_configured_budgets_have_the_clients_in_order",
        (("gdpfed/audit/plan_checks.py", "    yield from _check_sizes(files, members)\n", ""),),
    ),
    Defence(
        "model-described-otherwise",
        "audit/test_renewed_seals.py::test_the_description_of_a_model_follows_from_settings_and_weights",
        (("gdpfed/audit/run_audit.py", "            *check_model(directory, files),\n", ""),),
    ),
    Defence(
        "entries-that-nobody-reads",
        "audit/test_renewed_seals.py::test_what_a_file_says_follows_from_others",
        (("gdpfed/audit/run_audit.py", "            *check_entries(files),\n", ""),),
    ),
    Defence(
        "members-without-number",
        "audit/test_renewed_seals.py::test_what_a_file_says_follows_from_others",
        (("gdpfed/audit/known_noise.py", "if members > (everybody :=", "if 0 > (everybody :="),),
    ),
    Defence(
        "accuracy-at-chance-edited",
        "audit/test_renewed_seals.py::test_a_result_at_chance_has_the_accuracy_that_was_measured",
        (("gdpfed/audit/run_audit.py", "            *check_chance(files),\n", ""),),
    ),
    Defence(
        "card-without-its-loss",
        "audit/test_renewed_seals.py::test_a_card_of_an_earlier_version_names_no_loss_and_the_audit_says_so",
        (("gdpfed/audit/run_audit.py", ", *unnamed_on_card(files))", ",)"),),
    ),
    Defence(
        "budgets-of-groups-edited",
        "audit/test_renewed_seals.py::test_what_a_file_says_follows_from_others",
        (
            (
                "gdpfed/audit/plan_checks.py",
                "stated not in (budgets, [min(budgets)] * len(stated))",
                "set(stated) - set(budgets)",
            ),
        ),
    ),
    Defence(
        "chosen-budgets-stated-lower",
        "audit/test_renewed_seals.py::test_what_a_file_says_follows_from_others",
        (
            (
                "gdpfed/extras/fedpcs/audit/budget_checks.py",
                "if group[key] is None or not math.isclose(group[key], value, rel_tol=within):",
                "if False:",
            ),
        ),
    ),
    Defence(
        "counts-below-nothing",
        "audit/test_renewed_seals.py::test_what_a_file_says_follows_from_others",
        (
            (
                "gdpfed/extras/fedpcs/audit/budget_checks.py",
                '    if not _before(own) >= 0 or ("rule" not in own and _before(own)):\n',
                "    if False:\n",
            ),
        ),
    ),
    Defence(
        "second-sum-of-a-round",
        "audit/test_renewed_seals.py::test_what_a_file_says_follows_from_others",
        (("gdpfed/audit/round_checks.py", 'if noise and often > plan["sums_per_round"]:', "if False:"),),
    ),
    Defence(
        "last-round-unlogged",
        "audit/test_renewed_seals.py::test_what_a_file_says_follows_from_others",
        (
            (
                "gdpfed/audit/round_checks.py",
                "    elif len(numbers) < charged and MODEL_FILE in (files.seal or ()):\n",
                "    elif False:\n",
            ),
        ),
    ),
    Defence(
        "vote-by-another-event",
        "audit/test_node_audit.py::test_terms_with_events_that_no_program_writes_are_refused",
        (("gdpfed/audit/node_audit.py", '        check_charges(charges, ("gaussian",))\n', ""),),
    ),
    Defence(
        "norms-of-groups-edited",
        "audit/test_renewed_seals.py::test_what_a_file_says_follows_from_others",
        (("gdpfed/audit/plan_checks.py", "    yield from _check_mean_norm(files)\n", ""),),
    ),
    Defence(
        "divergence-of-no-number",
        "privacy/test_no_number.py::test_a_divergence_that_is_no_number_proves_no_epsilon",
        (("gdpfed/privacy/accountants/rdp.py", "    if not renyi > -math.inf:\n", "    if False:\n"),),
    ),
    Defence(
        "losses-of-no-number",
        "privacy/test_no_number.py::test_losses_that_are_no_distribution_have_no_epsilon",
        (
            (
                "gdpfed/privacy/accountants/losses.py",
                "        if not (self.infinite <= delta and self._is_sound()):\n",
                "        if self.infinite > delta:\n",
            ),
        ),
    ),
    Defence(
        "charged-and-never-asked",
        "privacy/test_no_number.py::test_terms_with_what_a_ledger_cannot_count_are_refused",
        (
            (
                "gdpfed/privacy/mechanisms/sampled/terms.py",
                "isinstance(charge.event, self.event_class) for charge in",
                "True for charge in",
            ),
        ),
    ),
    Defence(
        "gate-keeps-headers",
        "deploy/test_gate.py::test_headers_without_end_are_not_kept",
        (("deploy/gate.py", '        http="h11",\n', ""),),
    ),
    Defence(
        "units-show-records",
        "deploy/test_units.py::test_a_unit_sees_its_own_credentials_and_folders_and_no_others",
        (("deploy/units.py", "if data is not None and not has_data else []", "if False else []"),),
    ),
    Defence(
        "another-app-than-named",
        "deploy/test_signed_apps.py::test_flower_gets_a_refused_bundle_without_signatures",
        (("deploy/supernode.py", "sha256(fab.content).hexdigest() != fab_hash", "fab is None"),),
    ),
    Defence(
        "records-dealt-otherwise",
        "federation/node/test_record_budget.py::"
        "test_a_second_run_over_records_that_were_dealt_otherwise_counts_at_the_largest_rate",
        (
            (
                "gdpfed/privacy/mechanisms/records/terms.py",
                "dealt = bool(self.dealt_by) and self.dealt_by == other.dealt_by",
                "dealt = True",
            ),
        ),
    ),
    Defence(
        "free-terms-in-a-merge",
        "federation/node/test_ledger_copy.py::"
        "test_the_terms_that_were_paid_for_stay_and_not_those_that_cost_nothing",
        (
            (
                "gdpfed/federation/node/ledger_file.py",
                "        if known is None or _is_free(known):\n",
                "        if known is None:\n",
            ),
            (
                "gdpfed/federation/node/ledger_file.py",
                '        known["terms"] = _terms_of_both(known, entry)\n',
                "",
            ),
        ),
    ),
    Defence(
        "another-budget-raised",
        "federation/node/test_raised_budget.py::"
        "test_whatever_was_raised_of_several_budgets_asks_for_the_word",
        (
            (
                "gdpfed/federation/node/budget.py",
                "    last, now, setting = before[-1], budget.epsilons, SETTING_OF[terms.unit]\n",
                "    last, now, setting = before[-1], (budget.epsilon,), SETTING_OF[terms.unit]\n",
            ),
        ),
    ),
    Defence(
        "later-budget-lower",
        "federation/node/test_turn_budget.py::"
        "test_an_older_run_does_not_spend_what_a_later_run_promised_less_of",
        (
            (
                "gdpfed/federation/node/budget.py",
                "each.epsilons, each.delta) for each in since]\n",
                "each.epsilons, each.delta) for each in [*since][:1]]\n",
            ),
        ),
    ),
    Defence(
        "lowered-budget-of-open-runs",
        "federation/node/test_turn_budget.py::test_a_lowered_budget_holds_for_the_runs_that_are_open",
        (
            (
                "gdpfed/federation/node/budget.py",
                "in (*promised, (None, terms, budget.epsilons, budget.delta)):\n",
                "in promised or [(None, terms, budget.epsilons, budget.delta)]:\n",
            ),
        ),
    ),
    Defence(
        "resumed-beyond-its-budget",
        "federation/node/test_turn_budget.py::"
        "test_a_run_that_no_turn_is_left_for_is_refused_when_it_is_resumed",
        (
            (
                "gdpfed/federation/node/budget.py",
                "in (*promised, (None, terms, budget.epsilons, budget.delta)):\n",
                "in ((None, terms, budget.epsilons, budget.delta),):\n",
            ),
        ),
    ),
    Defence(
        "budgets-of-epsilon-and-delta-mixed",
        "federation/node/test_turn_budget.py::test_epsilon_and_delta_of_a_budget_are_one_promise",
        (
            (
                "gdpfed/federation/node/budget.py",
                "each.epsilons, each.delta) for each in since]",
                "each.epsilons, min(each.delta, budget.delta)) for each in since]",
            ),
        ),
    ),
    Defence(
        "any-order-of-budgets",
        "federation/node/test_turn_budget.py::test_any_order_of_raises_and_lowers_keeps_every_budget",
        (
            (
                "gdpfed/federation/node/budget.py",
                "since = dropwhile(lambda each: each.terms.run != terms.run, ",
                "since = filter(lambda each: each.terms.run == terms.run, ",
            ),
        ),
    ),
    Defence(
        "audit-of-runs-without-a-turn",
        "federation/node/test_turn_budget.py::test_a_run_without_a_turn_leaves_another_its_own_proof",
        (
            (
                "gdpfed/audit/accounting.py",
                "    paid = [run for run in runs if run]\n",
                "    paid = runs\n",
            ),
        ),
    ),
    Defence(
        "delta-raised",
        "federation/node/test_raised_budget.py::"
        "test_whatever_was_raised_of_several_budgets_asks_for_the_word",
        (("gdpfed/federation/node/budget.py", "    if budget.delta > last.delta:\n", "    if False:\n"),),
    ),
    Defence(
        "copy-not-mounted",
        "federation/node/test_ledger_copy.py::"
        "test_an_empty_folder_in_place_of_the_copy_is_refused_until_its_operator_accepts",
        (
            (
                "gdpfed/federation/node/ledger_file.py",
                "            if self._has_copy:\n",
                "            if False:\n",
            ),
        ),
    ),
    Defence(
        "newest-ledger-forgotten",
        "federation/node/test_ledger_copy.py::"
        "test_what_was_spent_is_not_forgotten_where_the_newest_is_in_neither_place",
        (
            (
                "gdpfed/federation/node/ledger_file.py",
                "        if known and not {_digest(body) for body in bodies} & set(known):\n",
                "        if known and not bodies:\n",
            ),
        ),
    ),
    Defence(
        "owners-file-named",
        "federation/server/test_submitted.py::test_files_lie_below_what_the_operator_gives",
        (
            (
                "gdpfed/runs/paths.py",
                "    if isinstance(options := given_value(left, PARTITION_OPTIONS), dict):\n",
                "    if isinstance(options := None, dict):\n",
            ),
        ),
    ),
    Defence(
        "charged-otherwise-than-planned",
        "audit/test_renewed_seals.py::test_charges_are_compared_with_a_plan_and_settings_that_agree",
        (("gdpfed/audit/plan_checks.py", "        yield from _check_events(files, index)\n", ""),),
    ),
    Defence(
        "refused-model-ordered",
        "extras/statistics/test_statistics_at_nodes.py::"
        "test_a_server_that_is_silent_of_its_model_at_the_join_asks_in_vain_afterwards",
        (("gdpfed/federation/node/sum_stages.py", "    check_refused(own, order.task.model)\n", ""),),
    ),
    Defence(
        "statistics-edited",
        "extras/statistics/test_statistics_audit.py::test_the_audit_finds_an_edited_statistic",
        (
            (
                "gdpfed/audit/run_audit.py",
                "        if method in AUDIT_CHECKS.names():\n",
                "        if False:\n",
            ),
        ),
    ),
    Defence(
        "counts-without-room-for-rounding",
        "extras/statistics/test_statistics.py::test_an_order_with_too_small_a_bound_counts_nothing",
        (("gdpfed/extras/statistics/record_work.py", "not moves <= left", "False"),),
    ),
    Defence(
        "seal-lacks-a-file",
        "audit/test_renewed_seals.py::test_a_line_taken_out_of_the_seal_is_found",
        (("gdpfed/audit/seal_checks.py", "sorted(wanted - set(files.seal))", "()"),),
    ),
    Defence(
        "tolerances-edited",
        "audit/test_renewed_seals.py::test_settings_are_compared_with_what_was_made_of_them",
        (("gdpfed/audit/plan_checks.py", "    yield from _check_configuration(files)\n", ""),),
    ),
    Defence(
        "card-taken-out",
        "audit/test_renewed_seals.py::test_a_line_taken_out_of_the_seal_is_found",
        (("gdpfed/audit/seal_checks.py", "*SEALED_AT_END, MODEL_CARD_FILE)", "*SEALED_AT_END)"),),
    ),
    Defence(
        "cut-uncounted",
        "learning/test_tables.py::test_what_a_declaration_cuts_is_counted_and_said",
        (("gdpfed/learning/data/table_rows.py", "| (numbers > column.high)", "| False"),),
    ),
    Defence(
        "card-edited",
        "audit/test_renewed_seals.py::test_every_line_of_the_card_is_computed_again",
        (("gdpfed/audit/run_audit.py", "            *check_card(files),\n", ""),),
    ),
    Defence(
        "model-classes-exchanged",
        "learning/test_prediction.py::test_names_of_outputs_are_bound_to_the_weights",
        (("gdpfed/learning/model_folder.py", "if hashes[name] != sha256(data).hexdigest()", "if False"),),
    ),
    Defence(
        "thousands-taken-for-decimals",
        "learning/test_file_forms.py::"
        "test_a_full_stop_that_may_group_thousands_is_refused_unless_the_site_says[20-,-1200]",
        (("gdpfed/learning/data/cells.py", ' or found.separator == ";")', ")"),),
    ),
    Defence(
        "decimals-taken-for-an-index",
        "learning/test_file_forms.py::"
        "test_a_running_number_is_none_where_decimal_commas_would_explain_the_rows_too[rows0-None]",
        (("gdpfed/learning/data/csv_head.py", 'if separator == "," and not', "if not separator and not"),),
    ),
    Defence(
        "missing-persons-as-one",
        "learning/test_persons.py::test_rows_without_a_person_are_not_those_of_one[NA]",
        (("gdpfed/learning/data/table_rows.py", "if text.casefold() in NO_PERSON\n", "if not text\n"),),
    ),
    Defence(
        "rows-of-a-person-uncounted",
        "learning/test_persons.py::"
        "test_rows_beyond_those_that_are_kept_of_a_person_are_counted_where_they_are",
        (("gdpfed/learning/data/persons.py", "np.maximum(counts - most_rows, 0)", "np.zeros(1)"),),
    ),
    Defence(
        "predictions-in-place-of-the-table",
        "learning/test_prediction.py::test_what_is_predicted_takes_the_place_of_no_file[--output]",
        (
            (
                "gdpfed/cli/predict_command.py",
                "            refuse_existing(path, option)\n",
                "            pass\n",
            ),
        ),
    ),
    Defence(
        "report-of-edited-files",
        "report/test_run_page.py::test_no_table_shows_figures_of_files_that_were_changed",
        (("gdpfed/cli/named_runs.py", "            _require_sealed(path)\n", "            pass\n"),),
    ),
    Defence(
        "unreadable-data-joins",
        "federation/node/test_join_checks.py::test_a_node_without_data_joins_no_run_whose_data_it_cannot_read",
        (
            (
                "gdpfed/federation/node/join_checks.py",
                "        check_part(settings, str(question[SOURCE]))\n",
                "        pass\n",
            ),
        ),
    ),
    Defence(
        "missing-package-joins",
        "federation/node/test_join_checks.py::"
        "test_a_node_joins_no_run_whose_model_or_loss_is_in_a_package_that_it_lacks",
        (("gdpfed/federation/node/join_checks.py", "    _check_installed(question)\n", ""),),
    ),
    Defence(
        "small-cohort-charged",
        "extras/fedpcs/test_fedpcs.py::test_who_is_drawn_for_no_sum_is_neither_asked_nor_charged",
        (
            (
                "gdpfed/rounds/enough.py",
                "    if plan.mechanism.small_cohorts_are_charged:\n",
                "    if True:\n",
            ),
        ),
    ),
    Defence(
        "guard-memory",
        "client_app/test_guard.py::test_large_messages_are_read_within_one_bound_of_memory",
        (
            (
                "client_app/guard.py",
                "                if length > SMALL_BYTES:\n",
                "                if False:\n",
            ),
        ),
    ),
    Defence(
        "session-taken-twice",
        "client_app/test_guard.py::test_of_two_messages_at_once_one_has_the_session",
        (
            (
                "gdpfed/federation/node/sessions.py",
                "_TAKEN_BY_ONE = Lock()",
                "_TAKEN_BY_ONE = __import__('contextlib').nullcontext()",
            ),
        ),
    ),
    Defence(
        "complaints-unnamed",
        "secagg/test_complaints.py::test_complaints_that_leave_a_member_out_name_both_sides",
        (
            (
                "secagg/protocol/server_state.py",
                "for member, accusers in accusers_of.items() if accusers}",
                "for member, accusers in accusers_of.items() if False}",
            ),
        ),
    ),
    Defence(
        "node-vanishes",
        "deploy/test_faults.py::test_a_node_killed_at_any_stage[share-4]",
        (ERRORS_TOLERATED,),
    ),
    Defence(
        "node-cut-off",
        "deploy/test_faults.py::test_a_node_that_is_cut_off_for_a_round_takes_part_in_the_next",
        (DEADLINE, ERRORS_TOLERATED),
    ),
    Defence(
        "deadline",
        "deploy/test_faults.py::test_a_client_that_breaks_the_rules_is_left_out_of_the_sum",
        (DEADLINE,),
    ),
    Defence(
        "charged-before",
        "deploy/test_faults.py::test_a_server_app_killed_in_any_stage_is_resumed[share]",
        (("gdpfed/rounds/loop.py", "        self.files.save_ledger(ledger)\n", ""),),
    ),
    Defence(
        "not-repeated",
        "deploy/test_faults.py::test_a_server_app_killed_in_any_stage_is_resumed[unmask]",
        (("gdpfed/rounds/loop.py", "if self.state.ledger.charged_rounds > index:", "if False:"),),
    ),
    Defence(
        "full-disk",
        "runs/test_whole_files.py::test_a_file_that_finds_no_room_leaves_the_old_one_and_no_draft",
        (("gdpfed/files.py", "        draft.unlink(missing_ok=True)\n", "        pass\n"),),
    ),
    Defence(
        "rules-broken",
        "deploy/test_faults.py::test_a_client_that_breaks_the_rules_is_left_out_of_the_sum",
        (
            (
                "gdpfed/rounds/pairwise.py",
                "            except RemoteProtocolError as error:\n",
                "            except RemoteProtocolError as error:\n                raise\n",
            ),
        ),
    ),
    Defence(
        "replayed",
        "deploy/test_faults.py::test_a_client_that_breaks_the_rules_is_left_out_of_the_sum",
        (
            (
                "secagg/protocol/server_state.py",
                "        _check_bound(state, stage, member, reply)\n        if reply.context",
                "        if reply.context",
            ),
            ("secagg/protocol/server_state.py", "if reply.context != state.context:", "if False:"),
        ),
    ),
    Defence(
        "own-budget",
        "deploy/test_faults.py::test_a_plan_beyond_the_nodes_own_budgets_is_refused_by_the_nodes",
        (
            (
                "gdpfed/federation/node/budget.py",
                "            if epsilon <= limit:\n",
                "            if True:\n",
            ),
        ),
    ),
    Defence(
        "app-without-an-answer",
        "deploy/test_signed_apps.py::test_an_app_that_ends_before_it_takes_its_message_does_not_stop_its_node",
        (("deploy/supernode.py", "if not state.get_tasks(statuses=UNFINISHED) and", "if False and"),),
    ),
    Defence(
        "signed-apps",
        "deploy/test_signed_apps.py::test_flower_gets_a_refused_bundle_without_signatures",
        (("deploy/supernode.py", "                return Fab(fab.hash_str, fab.content, {})\n", ""),),
    ),
    Defence(
        "superlink-restarted",
        "deploy/test_faults.py::test_a_restarted_superlink_knows_its_nodes",
        (("docker-compose.yml", " --database /state/superlink.db\n    restart", "\n    restart"),),
    ),
    Defence(
        "superlink-restarted-meanwhile",
        "deploy/test_faults.py::test_a_superlink_restarted_in_the_middle_of_a_run",
        (
            (
                "deploy/superlink_client.py",
                "while (run := self.status(run_id)).status != FINISHED:",
                "while not (run := self.status(run_id)):",
            ),
        ),
    ),
    Defence(
        "database-locked",
        "deploy/test_faults.py::test_a_superlink_whose_database_is_locked_for_a_while",
        (("deploy/superlink.py", "    wait_for_database()\n", ""),),
    ),
    Defence(
        "space-in-the-path",
        "deploy/test_superlink.py::test_its_tables_are_made_under_any_path",
        (("deploy/superlink.py", "    find_tables_under_any_path()\n", ""),),
    ),
    Defence(
        "key-not-registered",
        "deploy/test_federation.py::test_a_node_that_nobody_registered_is_refused",
        (
            (
                "tests/deploy/test_federation.py",
                "    processes = {\n",
                '    running.operate("register", "--public", str(running.home.path / "public"))\n'
                "    processes = {\n",
            ),
        ),
    ),
    Defence(
        "node-registers-itself",
        "deploy/test_federation.py::test_a_node_that_nobody_registered_is_refused",
        (("docker-compose.yml", " --enable-supernode-auth", ""),),
    ),
    Defence(
        "secret-of-the-superexecs",
        "deploy/test_federation.py::test_a_superexec_with_another_secret_gets_no_work",
        (
            (
                "docker-compose.yml",
                "      --superexec-auth-secret-file /federation/superexec.secret --database",
                "      --database",
            ),
        ),
    ),
    Defence(
        "plain-text",
        "deploy/test_federation.py::test_a_plain_text_client_gets_no_answer",
        (
            (
                "tests/deploy/test_federation.py",
                'http.client.HTTPConnection("127.0.0.1", running.place.port(SUPERLINK), timeout=10)',
                "http.client.HTTPSConnection(\n"
                '        "127.0.0.1",\n'
                "        running.place.port(SUPERLINK),\n"
                '        context=__import__("ssl")._create_unverified_context(),\n'
                "    )",
            ),
        ),
    ),
    Defence(
        "run-put-back",
        "runs/test_charged_mark.py::test_a_run_that_was_put_back_from_a_copy_is_not_resumed",
        (("gdpfed/runs/charged_mark.py", "        if held < most:\n", "        if False:\n"),),
    ),
    Defence(
        "setting-kept-from-the-node",
        "flower/test_private_client.py::test_a_setting_of_the_node_is_not_kept_from_it",
        (("gdpfed/flower/client.py", "all_settings().keys() & set(own_settings)", "set()"),),
    ),
    Defence(
        "app-in-allocated-rounds",
        "flower/test_private_client.py::test_what_cannot_be_is_refused_in_one_line_before_anything_is_asked",
        (("gdpfed/flower/strategy.py", '("fixed_size", "allocation")', '("fixed_size",)'),),
    ),
    Defence(
        "accounting-without-end",
        "federation/node/test_record_budget.py::"
        "test_terms_that_take_minutes_to_account_are_refused_before_the_ledger_is_locked",
        (
            (
                "gdpfed/federation/node/budget.py",
                "    if len(laws) * groups > MOST_LAWS:\n",
                "    if False:\n",
            ),
            (
                "gdpfed/federation/node/budget.py",
                "    if longest * groups > MOST_WINDOW_STEPS:\n",
                "    if False:\n",
            ),
            ("gdpfed/federation/node/budget.py", "    if steps * groups > MOST_STEPS:\n", "    if False:\n"),
        ),
    ),
    Defence(
        "schedule-without-end",
        "federation/node/test_noise_asked_back.py::"
        "test_a_schedule_that_is_none_is_refused_when_the_run_is_offered",
        (
            (
                "gdpfed/federation/node/schedule_checks.py",
                "            if group.width > 1 and group.period > terms.num_rounds:\n",
                "            if False:\n",
            ),
        ),
    ),
    Defence(
        "sum-sized-one-by-one",
        "secagg/test_graph.py::test_the_fewest_members_of_a_large_sum_are_found_in_a_few_steps",
        (
            (
                "secagg/protocol/graph.py",
                "bisect_left(range(1, most + 1), True, key=fails))\n",
                "next((gone for gone in range(most) if fails(gone + 1)), most))\n",
            ),
        ),
    ),
    Defence(
        "parties-without-end",
        "federation/node/test_record_budget.py::"
        "test_terms_that_take_minutes_to_account_are_refused_before_the_ledger_is_locked",
        (
            (
                "gdpfed/federation/node/budget.py",
                '    each_step = ("num_steps", "parties")\n',
                '    each_step = ("num_steps",)\n',
            ),
        ),
    ),
    Defence(
        "layers-without-end",
        "federation/node/test_contribution.py::"
        "test_what_an_order_costs_is_known_before_anything_of_it_is_built",
        (("gdpfed/learning/models/networks.py", "    if num_layers > MOST_LAYERS:\n", "    if False:\n"),),
    ),
    Defence(
        "transformer-without-end",
        "learning/test_transformers.py::test_what_cannot_be_a_transformer_is_refused_in_one_line",
        (
            (
                "gdpfed/learning/models/transformer.py",
                "    if sizes.layers > MOST_LAYERS:\n",
                "    if False:\n",
            ),
        ),
    ),
    Defence(
        "session-not-erased",
        "server_app/test_damaged_messages.py::test_a_session_that_cannot_be_erased_from_the_disk_is_a_refusal",
        (
            (
                "client_app/node_app.py",
                '        asked, answers = [], _refusal("stages", error, context, "")\n',
                "        raise\n",
            ),
        ),
    ),
    Defence(
        "error-for-a-message",
        "server_app/test_damaged_messages.py::test_a_message_with_an_error_in_place_of_content_is_answered",
        (
            (
                "client_app/node_app.py",
                'run_in(message.content, asked) if message.has_content() else ""',
                "run_in(message.content, asked)",
            ),
        ),
    ),
    Defence(
        "setting-dropped",
        "federation/node/test_node_config.py::test_a_word_that_is_no_setting_is_refused_and_not_dropped",
        (
            (
                "gdpfed/federation/node/stand_ins.py",
                '        elif rest := " ".join(_WORD.sub(" ", words).split()):\n',
                '        elif rest := "":\n',
            ),
        ),
    ),
    Defence(
        "ledger-overwritten",
        "federation/node/test_node_config.py::test_no_file_of_a_node_takes_the_place_of_another",
        (("gdpfed/federation/node/ledger_file.py", "        if place == same:\n", "        if False:\n"),),
    ),
    Defence(
        "first-write-that-fails",
        "federation/node/test_ledger_copy.py::test_a_first_write_that_fails_locks_no_node_out",
        (
            (
                "gdpfed/federation/node/ledger_file.py",
                "unspent = data is None and set(known)",
                "unspent = False and set(known)",
            ),
        ),
    ),
    Defence(
        "run-resumed-twice",
        "runs/test_charged_mark.py::test_of_two_copies_that_are_resumed_at_once_one_goes_on",
        (
            (
                "gdpfed/runs/charged_mark.py",
                "            if (read_regular(self.path) if self.path.exists() else None) != self._last:\n",
                "            if False:\n",
            ),
        ),
    ),
    Defence(
        "too-few-charged",
        "server_app/test_too_few_nodes.py::test_a_round_that_nobody_can_be_asked_in_is_not_charged",
        (("gdpfed/rounds/enough.py", "    if present is not None and not some_sum(", "    if False and ("),),
    ),
    Defence(
        "small-cohorts-tell",
        "privacy/test_allocation.py::test_who_sees_that_a_round_is_skipped_learns_of_the_others_of_its_block",
        (
            (
                "gdpfed/privacy/sampling/cohort_sizes.py",
                "    if any(reveals_turns(",
                "    if False and any(reveals_turns(",
            ),
        ),
    ),
    Defence(
        "rounds-without-a-sum-tell",
        "rounds/test_fill.py::test_whether_there_is_a_sum_tells_nothing_of_who_was_drawn",
        (("gdpfed/rounds/extensions/fill.py", "        if not missing:\n", "        if True:\n"),),
    ),
    Defence(
        "who-fills-trains",
        "rounds/test_fill.py::"
        "test_zeros_are_sent_in_every_coordinate_by_an_edge_too_and_where_a_device_masks",
        (("gdpfed/federation/node/contribution.py", "        if order.fills:\n", "        if False:\n"),),
    ),
    Defence(
        "zeros-single-out",
        "client_app/test_order.py::test_others_may_send_zeros_in_a_sum_with_noise_alone",
        (
            (
                "gdpfed/clients/order.py",
                "        if self.may_fill and (little := ",
                "        if False and (little := ",
            ),
        ),
    ),
    Defence(
        "zeros-unsaid",
        "client_app/test_order.py::"
        "test_zeros_are_refused_where_the_others_were_told_otherwise_or_nobody_is_drawn",
        (
            (
                "gdpfed/clients/order_checks.py",
                "    if order.fills and not order.may_fill:\n",
                "    if False:\n",
            ),
        ),
    ),
    Defence(
        "zeros-told-to-some",
        "client_app/test_order.py::test_everything_that_an_update_depends_on_is_in_the_context",
        (
            (
                "gdpfed/clients/order.py",
                "self.for_part(ClientPart()).to_scalars()",
                "replace(self.for_part(ClientPart()), may_fill=False).to_scalars()",
            ),
        ),
    ),
    Defence(
        "zeros-beyond-terms",
        "federation/node/test_asked_rounds.py::"
        "test_others_may_send_zeros_only_where_clients_are_drawn_by_poisson_sampling",
        (
            (
                "gdpfed/federation/node/budget.py",
                "    if (order.may_fill or order.fills) and not may_be_filled(",
                "    if False and not may_be_filled(",
            ),
        ),
    ),
    Defence(
        "zeros-show-draws",
        "federation/node/test_asked_rounds.py::"
        "test_who_was_drawn_as_often_as_it_may_be_still_fills_and_is_asked_for_keys",
        (("gdpfed/federation/node/budget.py", "        if not order.fills:\n", "        if True:\n"),),
    ),
    Defence(
        "zeros-damage-ledger",
        "client_app/test_order.py::test_whether_a_client_fills_is_true_or_false",
        (
            (
                "gdpfed/clients/order.py",
                "            if type(scalars[name]) is not bool:\n",
                "            if False:\n",
            ),
        ),
    ),
    Defence(
        "absent-members-tell",
        "server_app/test_too_few_nodes.py::"
        "test_a_round_does_not_begin_while_some_are_away_whom_a_cohort_of_a_fixed_size_may_have",
        (
            (
                "gdpfed/rounds/enough.py",
                "    if not (plan.absent_clients_count and plan.sample_is_secret):\n",
                "    if True:\n",
            ),
        ),
    ),
    Defence(
        "card-counts-the-drawn",
        "rounds/test_fill.py::test_a_run_that_is_resumed_fills_its_cohorts_as_before",
        (
            (
                "gdpfed/report/model_card.py",
                "    secret = subject.plan.sample_is_secret and",
                "    secret = False and",
            ),
        ),
    ),
    Defence(
        "allocation-tells-sizes",
        "privacy/test_allocation.py::test_what_is_not_proved_is_refused_in_one_line",
        (
            (
                "gdpfed/methods/__init__.py",
                "    if config.secagg.same_size and reveals_sizes(",
                "    if False and reveals_sizes(",
            ),
        ),
    ),
    Defence(
        "time-left-tells",
        "report/test_outputs_for_operators.py::test_nothing_that_is_shown_depends_on_who_was_drawn",
        (("gdpfed/report/metric_display.py", "    if not cohorts:\n", "    if False:\n"),),
    ),
    Defence(
        "mean-times-tell",
        "report/test_comparison.py::test_the_tables_hold_the_figures",
        (
            (
                "gdpfed/report/finished_run.py",
                "        if not cohorts_shown(self.plan, self.settings):\n",
                "        if False:\n",
            ),
        ),
    ),
    Defence(
        "absent-members-unaudited",
        "audit/test_round_checks.py::test_a_cohort_of_a_fixed_size_was_drawn_while_all_could_be_reached",
        (("gdpfed/audit/mechanisms/sampled_sums.py", " & (there < population) & secret", " & False"),),
    ),
    Defence(
        "few-there-tell",
        "server_app/test_too_few_nodes.py::"
        "test_a_round_whose_cohort_could_be_too_small_does_not_begin_where_rounds_are_drawn_ahead",
        (
            (
                "gdpfed/rounds/enough.py",
                "    if present is not None and _would_tell(",
                "    if False and _would_tell(",
            ),
        ),
    ),
    Defence(
        "other-data",
        "runs/test_known_data.py::test_other_data_are_refused_by_the_name_of_their_file",
        (("gdpfed/runs/known_data.py", "        if began.get(setting) != now:\n", "        if False:\n"),),
    ),
    Defence(
        "turns-too-close",
        "rounds/test_rogue_streams.py::test_turns_that_are_too_close_or_too_many[too close]",
        (("gdpfed/privacy/correlated_noise.py", "    if nearest < separation:\n", "    if False:\n"),),
    ),
    Defence(
        "turns-too-often",
        "rounds/test_rogue_streams.py::test_turns_that_are_too_close_or_too_many[too often]",
        (("gdpfed/privacy/correlated_noise.py", "    if len(taken) >= most_turns:\n", "    if False:\n"),),
    ),
    Defence(
        "no-new-noise",
        "rounds/test_rogue_streams.py::test_new_noise_that_is_missing",
        (
            (
                "gdpfed/federation/node/budget.py",
                "    if not stddev >= least * (1 - ROUNDING):\n",
                "    if False:\n",
            ),
        ),
    ),
    Defence(
        "key-not-erased",
        "federation/node/test_noise_shares.py::test_a_share_is_erased_when_no_later_round_takes_of_it",
        (
            (
                "gdpfed/federation/node/noise_shares.py",
                "return [share for share in shares if not share.is_over(",
                "return [share for share in shares if share or share.is_over(",
            ),
        ),
    ),
    Defence(
        "taken-back-twice",
        "federation/node/test_noise_shares.py"
        "::test_a_node_that_is_killed_in_between_takes_back_once_from_whatever_copy",
        (("gdpfed/privacy/ledgers/charged_run.py", "if later == round_index})", "if False})"),),
    ),
    Defence(
        "other-taps",
        "federation/node/test_noise_shares.py::test_other_parts_than_those_of_the_terms_are_refused_at_the_turn",
        (
            (
                "gdpfed/federation/node/budget.py",
                "    if order.taps != (() if once else noise_taps(terms)):\n",
                "    if False:\n",
            ),
        ),
    ),
    Defence(
        "closing-sum",
        "federation/node/test_noise_shares.py::test_a_server_that_asks_early_late_or_for_no_turn_is_refused",
        (
            (
                "gdpfed/privacy/ledgers/charged_run.py",
                "        if not 0 <= round_index < self.terms.num_rounds:\n",
                "        if False:\n",
            ),
        ),
    ),
    Defence(
        "counts-of-no-numbers",
        "client_app/test_hostile_models.py"
        "::test_no_model_asks_a_node_a_question_by_whether_it_answers[held_out_counts]",
        (
            (
                "gdpfed/learning/training/held_out_counts.py",
                "    outputs = np.where(np.isfinite(outputs).all(axis=1, keepdims=True), outputs, 0.0)\n",
                "",
            ),
        ),
    ),
    Defence(
        "counts-in-batches",
        "client_app/test_hostile_models.py"
        "::test_what_a_model_says_of_a_record_does_not_follow_from_how_many_others_there_are",
        (
            (
                "gdpfed/clients/works/held_out_counts.py",
                "    if rates:\n        outputs",
                "    if True:\n        outputs",
            ),
        ),
    ),
    Defence(
        "features-in-batches",
        "learning/test_one_by_one.py::test_no_row_of_a_file_changes_the_features_of_another[random_prior]",
        (
            (
                "gdpfed/learning/data/own.py",
                "    for record in records:\n        alone[0] = record\n        found.append(of(alone))\n",
                "    found.append(of(records) if len(records) else nothing)\n",
            ),
        ),
    ),
    Defence(
        "noise-that-ends-too-soon",
        "privacy/test_longest_draw.py"
        "::test_a_plan_whose_draws_are_too_short_is_refused_and_one_for_usual_budgets_is_not",
        (
            (
                "gdpfed/privacy/plan.py",
                "require_drawable(paid, self.delta, epsilon)",
                "pass",
            ),
        ),
    ),
    Defence(
        "best-order-afterwards",
        "privacy/test_composition.py::test_a_schedule_in_two_parts_costs_what_it_costs_in_one",
        (
            (
                "gdpfed/privacy/accountants/composition.py",
                'filter_epsilon(_renyi_total(merged, "fine", filter_curve), left, limit)',
                'epsilon_of_renyi(_renyi_total(merged, "fine", filter_curve), left)',
            ),
        ),
    ),
    Defence(
        "terms-of-noise-that-ends-too-soon",
        "privacy/test_longest_draw.py::test_a_node_refuses_terms_whose_draws_are_too_short",
        (
            (
                "gdpfed/federation/node/budget.py",
                "(*terms.vote, *terms.norm_histogram, *terms.planned_charges())",
                "()",
            ),
        ),
    ),
    Defence(
        "persons-of-another-width",
        "learning/test_record_training.py"
        "::test_how_many_rows_another_person_has_changes_no_bit_of_a_persons_gradient",
        (
            (
                "gdpfed/learning/training/record_training.py",
                "return copied(x[:, :, :rows]), copied(y[:, :, :rows])",
                "return x[:, :, :rows], y[:, :, :rows]",
            ),
        ),
    ),
    Defence(
        "separator-of-the-first-record",
        "learning/test_table_reader.py"
        "::test_no_record_changes_how_the_head_of_a_file_and_the_other_rows_are_read[no names]",
        (("gdpfed/learning/data/csv_head.py", "    if own.header:\n", "    if False:\n"),),
    ),
    Defence(
        "index-by-the-first-record",
        "learning/test_table_reader.py"
        "::test_no_record_changes_how_the_head_of_a_file_and_the_other_rows_are_read[index]",
        (("gdpfed/learning/data/table_file.py", "if last_filled is None else", "if not last_filled else"),),
    ),
    Defence(
        "running-number-or-separator",
        "learning/test_table_reader.py::test_a_running_number_in_rows_that_end_in_a_separator_is_refused_unless_the"
        "_site_says_what_it_is[1]",
        (
            (
                "gdpfed/learning/data/csv_head.py",
                "if (quoted or _count_from(start, first)) and all(",
                "if quoted and all(",
            ),
        ),
    ),
    Defence(
        "names-in-part-of-a-line",
        "learning/test_table_reader.py"
        "::test_no_record_changes_how_the_head_of_a_file_and_the_other_rows_are_read[name of two lines]",
        (
            (
                "gdpfed/learning/data/csv_head.py",
                '(line.decode(errors="replace") for line',
                "(line.decode(errors=\"replace\").replace('\"', '') for line",
            ),
        ),
    ),
    Defence(
        "quoted-separators-in-a-hidden-row",
        "learning/test_table_reader.py"
        "::test_no_record_changes_how_the_head_of_a_file_and_the_other_rows_are_read[quoted separator]",
        (
            (
                "gdpfed/learning/data/csv_records.py",
                'fields = split(line.decode(errors="replace"), self._separator.decode())',
                'fields = line.decode(errors="replace").split(self._separator.decode())',
            ),
        ),
    ),
    Defence(
        "gradients-of-a-loss-that-raises",
        "learning/test_record_training.py"
        "::test_a_record_for_which_the_loss_raises_counts_as_zeros_and_changes_nothing_of_the_others[1-ValueError]",
        (
            (
                "gdpfed/learning/training/record_training.py",
                "        for copies in (0, 2):\n",
                "        return [of_pass(one)]\n        for copies in (0, 2):\n",
            ),
        ),
    ),
    Defence(
        "turns-under-a-raised-budget",
        "federation/node/test_turn_budget.py::test_turns_of_a_run_are_paid_from_the_budget_under_which_it_began",
        (
            (
                "gdpfed/federation/node/budget.py",
                "in (*promised, (None, terms, budget.epsilons, budget.delta)):\n",
                "in ((None, terms, budget.epsilons, budget.delta),):\n",
            ),
        ),
    ),
    Defence(
        "memory-of-a-pass-that-failed",
        "learning/test_record_training.py::test_a_record_for_which_memory_ends_takes_none_of_the_others_along[10]",
        (
            (
                "gdpfed/learning/training/record_training.py",
                "_without_failing(one, of_pass, one[1].shape[1])]",
                "_without_failing(one, of_pass, 2)]",
            ),
        ),
    ),
    Defence(
        "trial-of-a-persons-rows",
        "learning/test_record_training.py::test_a_person_whose_rows_cannot_be_tried_has_a_width_of_one[MemoryError]",
        (
            (
                "fastgrad/record_gradients.py",
                "        except ENDS:\n            raise\n        except BaseException:\n",
                "        except (*ENDS, MemoryError):\n            raise\n        except BaseException:\n",
            ),
        ),
    ),
    Defence(
        "error-without-a-text",
        "flower/test_private_client.py::test_a_function_that_fails_tells_the_server_nothing[says nothing]",
        (
            (
                "conf/errors.py",
                '    except BaseException:\n        line = ""\n',
                "    finally:\n        pass\n",
            ),
        ),
    ),
    Defence(
        "whole-update-called-public",
        "flower/test_private_client.py::test_what_no_budget_pays_for_is_refused_unless_it_is_called_public",
        (("gdpfed/flower/client.py", '(OURS | {"train", WHOLE_UPDATE})', '(OURS | {"train"})'),),
    ),
    Defence(
        "client-under-two-names",
        "audit/test_renewed_seals.py::test_what_a_file_says_follows_from_others",
        (
            (
                "gdpfed/audit/round_checks.py",
                "            if client != str(int(client)):\n",
                "            if False:\n",
            ),
        ),
    ),
    Defence(
        "answers-of-a-model-that-raises",
        "client_app/test_held_out_counts.py::test_a_record_for_which_the_model_raises_is_one_cell_and_one_bin",
        (
            (
                "gdpfed/clients/works/held_out_counts.py",
                "                failed += 1\n",
                "                raise\n",
            ),
        ),
    ),
    Defence(
        "cells-read-by-their-neighbours",
        "learning/test_queries.py::test_no_row_of_a_database_changes_who_another_person_is",
        (
            (
                "gdpfed/learning/data/query_file.py",
                "    return column_of(values, names[at], form, place) if at else "
                "key_column(values, names[at], place)\n",
                "    try:\n        return pa.array(values)\n    except pa.ArrowException:\n"
                "        return pa.array(list(map(str, values)))\n",
            ),
        ),
    ),
    Defence(
        "csv-read-by-its-rows",
        "learning/test_queries.py::test_no_row_of_a_csv_file_changes_how_a_query_reads_the_others",
        (
            (
                "gdpfed/learning/data/databases.py",
                "{CSV_FORM.format(_separator(file))}",
                "header = true, all_varchar = true",
            ),
        ),
    ),
    Defence(
        "pictures-held-out-by-another-declaration",
        "learning/test_own_pictures.py::test_another_declaration_is_another_rule_of_what_is_held_out",
        (
            (
                "gdpfed/learning/data/own.py",
                "read_picture_form(self.path).digest",
                '""',
            ),
        ),
    ),
    Defence(
        "class-without-a-weight",
        "client_app/test_hostile_models.py"
        "::test_class_weights_that_are_not_one_for_each_class_are_refused_before_the_charge",
        (
            (
                "gdpfed/learning/training/record_losses.py",
                "        check_loss(name, labels, class_weights)\n",
                "        pass\n",
            ),
        ),
    ),
    Defence(
        "group-without-a-rate",
        "client_app/test_hostile_models.py"
        "::test_shares_of_more_groups_of_records_than_batch_rates_are_refused_before_the_charge",
        (
            (
                "gdpfed/clients/record_work.py",
                "    if order.task.record_shares and 1 < len(steps.batch_rates)",
                "    if False and 1 < len(steps.batch_rates)",
            ),
        ),
    ),
    Defence(
        "tokens-beyond-the-model",
        "client_app/test_hostile_models.py"
        "::test_a_form_of_examples_and_a_source_with_two_transforms_are_refused",
        (
            (
                "gdpfed/learning/task.py",
                "            if form.features != source.features:\n",
                "            if False:\n",
            ),
        ),
    ),
    Defence(
        "missing-text-as-a-person",
        "learning/test_persons.py::test_a_text_that_is_declared_as_missing_names_no_person",
        (
            (
                "gdpfed/learning/data/cells.py",
                '                general = {"", *columns.missing, *own.missing}\n',
                '                general = {""}\n',
            ),
        ),
    ),
    Defence(
        "rounds-read-from-refusals",
        "server_app/test_restored_ledger.py"
        "::test_no_other_server_reads_from_refusals_in_how_many_rounds_a_client_was",
        (
            (
                "gdpfed/federation/node/told_history.py",
                "elif run.secret and compare_digest(run.secret.encode(), told.secret.encode()):",
                "else:",
            ),
        ),
    ),
    Defence(
        "factors-of-few-bits",
        "client_app/test_hostile_models.py::test_no_model_moves_a_step_by_more_than_the_clipping_norm_of_a_record",
        (("fastgrad/record_gradients.py", "LONGEST = 2.0**90\n", "LONGEST = 2.0**1000\n"),),
    ),
    Defence(
        "products-of-few-bits",
        "fastgrad/test_record_gradients.py::test_no_form_of_a_part_adds_more_where_the_numbers_of_float32_end",
        (
            (
                "fastgrad/record_parts.py",
                "        return (norms_of(self.outputs) * inputs).square(), inputs\n",
                "        return (norms_of(self.outputs) * inputs).square(), None\n",
            ),
        ),
    ),
    Defence(
        "compiled-factors-of-few-bits",
        "fastgrad/test_record_gradients.py"
        "::test_no_record_adds_more_where_the_numbers_of_float32_end[cnn2-False]",
        (("fastgrad/programmed_gradients.py", "absent, most, LONGEST * most)", "absent, most, inf)"),),
    ),
    Defence(
        "sums-that-overflow",
        "client_app/test_record_work.py"
        "::test_a_clipping_norm_that_float32_cannot_hold_or_add_up_is_refused[3e+38]",
        (("gdpfed/record_steps.py", "self.clipping_norm <= MOST_NORM", "self.clipping_norm < inf"),),
    ),
    Defence(
        "errors-after-the-charge",
        "client_app/test_hostile_models.py::test_a_file_that_cannot_be_used_is_not_seen_in_a_round[update]",
        (
            (
                "gdpfed/federation/node/contribution.py",
                "        except (StandInError, *ENDS):\n",
                "        except (StandInError, Exception):\n",
            ),
        ),
    ),
    Defence(
        "refused-after-the-charge",
        "server_app/test_uncharged_orders.py::test_an_order_that_cannot_be_carried_out_is_not_charged",
        (
            (
                "gdpfed/federation/node/sum_stages.py",
                "        who.check(order, theta, session.encoding())\n",
                "",
            ),
        ),
    ),
    Defence(
        "held-out-by-type",
        "federation/node/test_join_checks.py"
        "::test_a_run_does_not_choose_by_its_types_which_examples_are_held_out[float32]",
        (
            (
                "gdpfed/learning/data/own.py",
                "chosen(own)))",
                "chosen(replace(own, x=own.x.astype(form.own_dtype), y=own.y.astype(form.labels.dtype)))))",
            ),
        ),
    ),
    Defence(
        "noise-used-again",
        "rounds/test_noise_streams.py::test_a_run_goes_on_and_takes_back_what_the_process_before_has_added",
        (("gdpfed/rounds/noise_streams.py", "os.urandom(KEY_BYTES)", "bytes(KEY_BYTES)"),),
    ),
    Defence(
        "own-share-known",
        "privacy/test_own_share.py::test_whoever_drops_out_the_noise_that_others_do_not_know_is_the_plans",
        (
            (
                "secagg/protocol/parameters.py",
                "self.corrupt_tolerance if self.mode == OFF else max(1, self.corrupt_tolerance)",
                "self.corrupt_tolerance",
            ),
        ),
    ),
    Defence(
        "own-share-audited",
        "privacy/test_own_share.py::test_a_run_whose_members_know_too_much_is_found_with_what_it_cost",
        (("gdpfed/audit/known_noise.py", "known = max(1, math.ceil(tolerated * members))", "known = 0"),),
    ),
    Defence(
        "small-figures-audited",
        "audit/test_second_accounting.py::test_small_figures_are_as_precise_as_large_ones",
        (
            (
                "gdpfed/audit/accounting.py",
                "    if not 0.0 < epsilon < math.inf:\n        return GRIDS[0]\n    allowed",
                "    if True:\n        return GRIDS[0]\n    allowed",
            ),
        ),
    ),
    Defence(
        "columns-put-beside-a-run",
        "audit/test_renewed_seals.py::test_columns_that_a_run_has_not_declared_are_no_columns_of_it",
        (("gdpfed/audit/run_files.py", "if declared and columns.exists()", "if columns.exists()"),),
    ),
    Defence(
        "columns-named-by-the-assignment",
        "audit/test_renewed_seals.py::test_columns_that_a_run_has_not_declared_are_no_columns_of_it",
        (
            (
                "gdpfed/audit/seal_checks.py",
                "    if files.columns is None and (directory / COLUMNS_FILE).exists():\n",
                "    if False:\n",
            ),
        ),
    ),
    Defence(
        "card-without-a-seal",
        "audit/test_renewed_seals.py::test_a_card_without_a_seal_is_compared",
        (
            (
                "gdpfed/audit/card_checks.py",
                "    if files.card is None:\n",
                "    if files.seal is None or files.card is None:\n",
            ),
        ),
    ),
    Defence(
        "card-of-a-pause",
        "server_app/test_runs.py::test_a_run_that_goes_on_has_no_card_of_its_pause",
        (
            (
                "gdpfed/runs/directory.py",
                "for name in (SEAL_FILE, MODEL_CARD_FILE):",
                "for name in (SEAL_FILE,):",
            ),
        ),
    ),
    Defence(
        "delta-that-is-not-named",
        "audit/test_renewed_seals.py::test_a_run_that_names_no_delta_has_the_default_one",
        (
            (
                "gdpfed/audit/plan_checks.py",
                'default_delta(files) if privacy["delta"] is None else',
                'plan["delta"] if privacy["delta"] is None else',
            ),
        ),
    ),
    Defence(
        "large-delta-not-said",
        "audit/test_renewed_seals.py::test_a_card_says_that_delta_is_large",
        (("gdpfed/audit/card_checks.py", 'f"{default_delta(files):.3g}"', "anything"),),
    ),
    Defence(
        "tiny-delta-audited",
        "audit/test_second_accounting.py"
        "::test_a_delta_below_the_tails_of_losses_has_a_figure_of_renyi_divergences",
        (
            (
                "gdpfed/audit/accounting.py",
                "    if math.isinf(epsilon) and not any(",
                "    if False and not any(",
            ),
        ),
    ),
    Defence(
        "kept-entry-believed",
        "extras/experiments/test_benchmark.py::test_a_kept_entry_is_not_believed_about_the_audit",
        (
            (
                "gdpfed/extras/experiments/benchmark_entries.py",
                'replace(Entry.from_values(values["entry"]), audit=verdict(run.path))',
                'Entry.from_values(values["entry"])',
            ),
        ),
    ),
    Defence(
        "a-sentence-for-a-date",
        "audit/test_renewed_seals.py::test_date_and_versions_of_a_card_are_no_sentences[date]",
        (("gdpfed/audit/card_checks.py", "lambda text: DATE.fullmatch(text) is not None", "anything"),),
    ),
    Defence(
        "noise-asked-back-by-colluders",
        "federation/node/test_noise_asked_back.py::"
        "test_colluders_who_are_all_that_bring_an_update_get_no_noise_back",
        (
            (
                "secagg/protocol/policy.py",
                "            or self._shares_broken(parameters)\n",
                "",
            ),
            (
                "gdpfed/federation/node/budget.py",
                "ceil(terms.corrupt_tolerance * parameters.num_clients)",
                "0",
            ),
            (
                "gdpfed/federation/node/sum_stages.py",
                "            check_schedule(terms,",
                "            (lambda *_: 0)(terms,",
            ),
        ),
    ),
    Defence(
        "terms-changed-within-a-sum",
        "federation/node/test_lying_server.py::test_terms_do_not_change_between_two_stages_of_a_sum",
        (
            (
                "gdpfed/federation/node/sum_stages.py",
                "parameters, order, check_members)",
                "parameters, order)",
            ),
        ),
    ),
    Defence(
        "rounds-read-by-another-server",
        "federation/node/test_other_servers.py::"
        "test_another_server_gets_one_line_for_every_round_and_for_a_run_that_never_began"
        "[advertise-]",
        (
            (
                "gdpfed/federation/node/sum_stages.py",
                "        check_server(own, request.round_of_run.run, request.secret)\n        checked",
                "        checked",
            ),
        ),
    ),
    Defence(
        "records-dealt-anew-within-a-run",
        "federation/node/test_record_budget.py::"
        "test_records_that_are_dealt_anew_within_a_run_have_the_least_rate",
        (
            (
                "gdpfed/clients/record_work.py",
                "    order = job.dealt(job.order)\n",
                "    order = job.order\n",
            ),
        ),
    ),
    Defence(
        "asked-by-the-rate-of-the-plan",
        "privacy/test_client_ledger.py::"
        "test_how_often_a_client_is_asked_is_judged_by_the_rate_that_is_charged",
        (
            (
                "gdpfed/privacy/mechanisms/sampled/terms.py",
                'fixed = event.sampling == "fixed_size"\n',
                "fixed = False\n",
            ),
        ),
    ),
    Defence(
        "own-functions-under-a-sampling-without-proof",
        "federation/node/test_noise_asked_back.py::"
        "test_an_apps_own_function_is_not_asked_under_a_sampling_without_proof[offered0]",
        (
            (
                "gdpfed/federation/node/schedule_checks.py",
                "    if own_function is not None and secret & NO_STATES:\n",
                "    if False:\n",
            ),
        ),
    ),
    Defence(
        "clear-update-on-other-terms",
        "federation/node/test_record_budget.py::"
        "test_an_update_in_clear_is_judged_by_the_terms_that_are_charged",
        (
            (
                "gdpfed/federation/node/budget.py",
                "order, partial(check_in_clear, budgets, round_of_run.index))",
                "order)",
            ),
        ),
    ),
    Defence(
        "schedule-without-signatures",
        "federation/node/test_noise_asked_back.py::"
        "test_a_sum_without_signatures_is_refused_where_a_schedule_was_agreed_to",
        (
            (
                "gdpfed/federation/node/schedule_checks.py",
                "not (signs or terms.schedule)",
                "not signs",
            ),
        ),
    ),
    Defence(
        "noise-asked-back-out-of-turn",
        "federation/node/test_noise_asked_back.py::test_a_sum_that_the_schedule_does_not_have_is_refused"
        "[another's turn]",
        (
            (
                "gdpfed/federation/node/schedule_checks.py",
                "if strangers := session.updates - schedule.due(round_index):",
                "if strangers := frozenset[int]():",
            ),
        ),
    ),
    Defence(
        "shares-held-without-a-part",
        "federation/node/test_noise_asked_back.py::test_a_sum_that_the_schedule_does_not_have_is_refused"
        "[members without a part]",
        (
            (
                "gdpfed/federation/node/schedule_checks.py",
                "if strangers := session.correctors - schedule.correctors(round_index, terms.noise_taps):",
                "if strangers := frozenset[int]():",
            ),
        ),
    ),
    Defence(
        "shares-held-by-who-drops-out",
        "secagg/test_correctors.py::test_who_drops_out_before_the_vectors_still_counts_as_a_member",
        (
            (
                "secagg/protocol/client_session.py",
                "frozenset(self._state.members).difference",
                "frozenset(self._state.contributors).difference",
            ),
        ),
    ),
    Defence(
        "members-of-one-stream",
        "federation/node/test_noise_asked_back.py::"
        "test_members_sign_for_no_other_terms_than_those_that_they_have_agreed_to[noise]",
        (
            (
                "gdpfed/federation/node/agreed_terms.py",
                '    if signed != (stream.digest if stream else ""):\n',
                "    if False:\n",
            ),
        ),
    ),
    Defence(
        "terms-tolerate-whom-a-node-fears",
        "federation/node/test_noise_asked_back.py::"
        "test_terms_are_refused_that_tolerate_fewer_colluders_than_the_operator_fears",
        (
            (
                "gdpfed/federation/node/agreed_terms.py",
                "terms.stream and not terms.corrupt_tolerance >= corrupt_fraction",
                "False",
            ),
        ),
    ),
    Defence(
        "work-charged-as-another",
        "privacy/test_charged_works.py::test_a_node_computes_what_its_terms_charge_and_nothing_else",
        (
            (
                "gdpfed/privacy/mechanisms/records/terms.py",
                "        if other := {event.bound for event in self.events} - {bound}:\n",
                "        if other := {event.bound for event in ()}:\n",
            ),
        ),
    ),
    Defence(
        "work-asked-as-another",
        "extras/h2fdp/test_h2fdp.py::"
        "test_the_ledger_lets_no_work_pass_whose_windows_the_plan_charges_by_another_bound",
        (
            (
                "gdpfed/privacy/mechanisms/records/mechanism.py",
                "        if charged != bound:\n",
                "        if False:\n",
            ),
        ),
    ),
    Defence(
        "masks-name-the-contributors",
        "secagg/test_colluding_server.py::"
        "test_two_stories_of_who_contributes_leave_no_sum_with_levels_of_noise",
        (
            (
                "secagg/protocol/client_keys.py",
                "    if state.sum_parameters.noise_levels:\n",
                "    if False:\n",
            ),
        ),
    ),
    Defence(
        "noise-asked-back-of-few",
        "federation/node/test_noise_asked_back.py::test_a_sum_that_the_schedule_does_not_have_is_refused"
        "[members held back]",
        (
            (
                "gdpfed/federation/node/schedule_checks.py",
                "max(parameters.num_clients, schedule.members(round_index, terms.noise_taps))",
                "parameters.num_clients",
            ),
        ),
    ),
    Defence(
        "guard-waits-for-a-token",
        "client_app/test_guard.py::test_strangers_that_drip_hold_no_place_and_are_dropped_within_a_second",
        (
            (
                "client_app/relay.py",
                "            if left <= 0:\n                raise TimeoutError\n"
                "            connection.settimeout(left)\n",
                "",
            ),
        ),
    ),
    Defence(
        "guard-counts-strangers",
        "client_app/test_guard.py::test_strangers_that_drip_hold_no_place_and_are_dropped_within_a_second",
        (
            (
                "client_app/guard.py",
                "                self.server.check(exactly(connection, TOKEN_BYTES, until))\n"
                "                self.server.count_as_known(connection)\n"
                "                with self.server.place():\n",
                "                with self.server.place():\n"
                "                    self.server.check(exactly(connection, TOKEN_BYTES, until))\n",
            ),
        ),
    ),
    Defence(
        "gate-forwards-unsigned",
        "deploy/test_gate.py::test_only_what_a_key_has_signed_now_reaches_the_superlink",
        (
            (
                "deploy/gate.py",
                "        if key is None:\n            await",
                "        if False:\n            await",
            ),
        ),
    ),
    Defence(
        "gate-takes-any-size",
        "deploy/test_gate.py::test_a_stranger_sends_little_and_a_node_as_much_as_a_message_has",
        (("deploy/gate.py", "        if taken > share.body_bytes:\n", "        if False:\n"),),
    ),
    Defence(
        "gate-drops-what-an-unknown-node-sends",
        "deploy/test_gate.py::"
        "test_a_node_that_a_new_gate_does_not_know_sends_its_large_message_after_a_small_one",
        (
            (
                "deploy/gate.py",
                "status = TOO_LARGE if key in self._known else UNAVAILABLE",
                "status = TOO_LARGE",
            ),
        ),
    ),
    Defence(
        "gate-passes-errors-on",
        "deploy/test_gate.py::test_a_supernode_repeats_all_that_it_is_refused_for_now",
        (("deploy/gate.py", "answer.status_code == BROKEN:", "False:"),),
    ),
    Defence(
        "message-handed-out-once",
        "deploy/test_delivery.py::test_a_message_is_handed_out_until_its_node_has_confirmed_it",
        (("deploy/delivery.py", '    (SqlLinkState, "get_message_ins", until_confirmed),\n', ""),),
    ),
    Defence(
        "part-of-a-reply-taken-once",
        "deploy/test_delivery.py::test_a_part_of_a_reply_that_is_sent_twice_is_stored",
        (("deploy/delivery.py", '    (SqlLinkState, "store_object", repeatable),\n', ""),),
    ),
    Defence(
        "half-a-reply-handed-over",
        "deploy/test_delivery.py::test_a_reply_of_which_parts_are_missing_holds_up_no_round",
        (("deploy/delivery.py", '    (SqlLinkState, "get_message_res", whole),\n', ""),),
    ),
    Defence(
        "reply-handed-out-once",
        "deploy/test_delivery.py::test_a_reply_is_handed_out_until_the_server_s_app_has_confirmed_it",
        (("deploy/delivery.py", '    (runtime_handlers, "pull_messages", kept),\n', ""),),
    ),
    Defence(
        "node-let-in-once",
        "deploy/test_delivery.py::test_a_node_is_let_in_again_until_something_was_heard_of_it",
        (("deploy/delivery.py", '    (SqlLinkState, "activate_node", let_in_again),\n', ""),),
    ),
    Defence(
        "gate-waits-for-a-body",
        "deploy/test_gate.py::test_strangers_whose_bodies_never_come_keep_no_node_out",
        (("deploy/gate.py", "        async with asyncio.timeout_at(until):\n", "        if until:\n"),),
    ),
    Defence(
        "gate-waits-for-headers",
        "deploy/test_gate.py::test_who_is_connected_and_says_nothing_is_hung_up_on",
        (("deploy/callers.py", "loop.call_later(seconds, caller", "loop.call_later(1e6 + seconds, caller"),),
    ),
    Defence(
        "gate-shares-places",
        "deploy/test_gate.py::test_each_key_has_places_of_its_own",
        (
            (
                "deploy/gate.py",
                "        asker = whose(peer[0]) if key is None else key\n",
                "        asker = whose(peer[0])\n",
            ),
        ),
    ),
    Defence(
        "gate-says-that-it-is-well",
        "deploy/test_gate.py::test_health_is_that_of_the_superlink",
        (("deploy/gate.py", "status_code=200 if answer.is_success else UNAVAILABLE", "status_code=200"),),
    ),
    Defence(
        "gate-does-not-end",
        "deploy/test_gate.py::test_it_ends_within_ten_seconds_with_requests_that_do_not",
        (("deploy/gate.py", "        timeout_graceful_shutdown=gate.shares.end_seconds,\n", ""),),
    ),
    Defence(
        "device-masks-otherwise",
        "secagg/test_device_masks.py::test_a_device_that_masks_otherwise_is_found_out",
        (
            (
                "gdpfed/clients/device/masks.py",
                "if not np.array_equal(_words(vector, place), _masked(words, place, segment_blocks, masks)):",
                "if False:",
            ),
        ),
    ),
    Defence(
        "device-draws-otherwise",
        "secagg/test_device_masks.py::test_a_device_that_draws_other_bits_for_noise_is_found_out",
        (
            (
                "gdpfed/clients/device/masks.py",
                "if not np.array_equal(_words(vector, place), _masked(words, place, segment_blocks, masks)):",
                "if False:",
            ),
        ),
    ),
    Defence(
        "device-noise-too-small",
        "secagg/test_held_vector.py::test_what_is_refused_of_an_array_is_refused_of_it",
        (("secagg/protocol/client_keys.py", "        _check_noise_norm(state, own)\n", "        pass\n"),),
    ),
    Defence(
        "device-half-masked",
        "federation/node/test_device_sums.py::test_an_error_of_the_device_ends_the_session_and_sends_nothing",
        (
            (
                "gdpfed/clients/device/sums.py",
                "        self.masks.add(residues, masks)\n",
                "        with contextlib.suppress(Exception):\n            self.masks.add(residues, masks)\n",
            ),
            (
                "gdpfed/clients/device/sums.py",
                "from collections.abc import Sequence\n",
                "import contextlib\nfrom collections.abc import Sequence\n",
            ),
        ),
    ),
    Defence(
        "optimizer-of-many-clients",
        "learning/test_optimizers.py::"
        "test_no_optimizer_of_a_package_moves_one_client_by_the_gradient_of_another",
        (
            (
                "gdpfed/learning/training/optimizers.py",
                "            together = is_ours(OPTIMIZERS.get(training.optimizer))\n",
                "            together = True\n",
            ),
        ),
    ),
    Defence(
        "loss-of-many-clients",
        "simulation/test_batched.py::test_a_loss_of_a_package_sees_the_records_of_one_client_at_a_time",
        (
            (
                "gdpfed/simulation/training_choice.py",
                "    return not (is_ours(LOSSES.get(task.loss)) and is_ours(type(task.known_form.labels)))\n",
                "    return False\n",
            ),
        ),
    ),
    Defence(
        "batches-filled-by-others",
        "simulation/test_batched.py::test_no_example_of_another_client_fills_a_batch_up",
        (
            (
                "gdpfed/simulation/batched_training.py",
                "            positions[:, column] = own[0]\n",
                "            positions[:, column] = 0\n",
            ),
        ),
    ),
    Defence(
        "states-of-many-clients",
        "rounds/test_client_states.py::test_no_state_of_a_package_carries_one_clients_vector_to_another",
        (
            (
                "gdpfed/clients/kept_states.py",
                "        if is_ours(type(kind)) or not count:\n",
                "        if True:\n",
            ),
        ),
    ),
    Defence(
        "model-of-many-clients",
        "simulation/test_batched.py::test_what_a_model_keeps_of_one_client_no_other_client_meets",
        (
            (
                "gdpfed/clients/order_checks.py",
                "    return deepcopy(_built(task)) if is_ours(MODELS.get(task.model)) else ",
                "    return _built(task) if task else ",
            ),
        ),
    ),
    Defence(
        "model-of-many-chunks",
        "simulation/test_batched.py::test_what_a_model_keeps_of_one_client_no_other_client_meets",
        (
            (
                "gdpfed/simulation/batched_training.py",
                "        if self._renew is not None:\n",
                "        if False:\n",
            ),
        ),
    ),
    Defence(
        "model-that-couples-seldom",
        "learning/test_coupled_records.py::test_a_model_of_ones_own_code_gets_records_one_by_one",
        (
            (
                "gdpfed/clients/record_forms.py",
                "    foreign = None if is_ours(MODELS.get(task.model)) else model\n",
                "    foreign = None\n",
            ),
        ),
    ),
    Defence(
        "sum-that-couples-records",
        "learning/test_coupled_records.py::test_a_sum_of_two_shapes_is_no_known_layer",
        (
            (
                "fastgrad/one_record.py",
                "        if len({each.shape for each in given}) > 1:\n",
                "        if False:\n",
            ),
            (
                "fastgrad/one_record.py",
                "        if not isinstance(found, torch.Tensor) or found.shape[:1] != x.shape[:1]:\n",
                "        if False:\n",
            ),
        ),
    ),
    Defence(
        "convex-for-other-labels",
        "extras/h2fdp/test_h2fdp.py::test_steps_are_convex_for_labels_that_are_one_class_alone",
        (("gdpfed/extras/h2fdp/subnet_mechanisms.py", "        one_class(labels),\n", "        True,\n"),),
    ),
    Defence(
        "convex-for-other-labels-at-a-node",
        "extras/h2fdp/test_h2fdp.py::test_steps_are_convex_for_labels_that_are_one_class_alone",
        (("gdpfed/clients/record_work.py", "    if not one_class(labels):\n", "    if False:\n"),),
    ),
    Defence(
        "convex-for-labels-of-a-package",
        "extras/h2fdp/test_h2fdp.py::test_steps_are_convex_for_labels_that_are_one_class_alone",
        (
            (
                "gdpfed/clients/record_work.py",
                "    return is_ours(type(labels)) and labels",
                "    return labels",
            ),
        ),
    ),
    Defence(
        "loss-that-couples-seldom",
        "learning/test_coupled_records.py::test_a_loss_of_ones_own_gets_records_one_by_one",
        (
            (
                "gdpfed/learning/training/coupled_records.py",
                "    return record_by_record(loss, outputs, targets)\n",
                "    return loss\n",
            ),
        ),
    ),
    Defence(
        "widths-tried-once",
        "learning/test_record_training.py::test_a_width_is_tried_with_many_records_and_models",
        (("fastgrad/record_gradients.py", "TRIED_NUMBERS = 25, 200, 2**23", "TRIED_NUMBERS = 1, 1, 1"),),
    ),
    Defence(
        "models-that-draw-for-records",
        "fastgrad/test_record_gradients.py::test_models_that_draw_in_training_are_refused_and_nothing_is_drawn",
        (
            (
                "gdpfed/learning/training/coupled_records.py",
                "            with draws_by(seed):\n",
                "            with draws_by(0 * seed):\n",
            ),
        ),
    ),
    Defence(
        "sums-of-records-rounded",
        "learning/test_record_training.py::"
        "test_one_record_moves_what_is_noised_by_the_clipping_norm_at_most_however_sums_are_rounded",
        (
            (
                "gdpfed/learning/training/record_training.py",
                "    total = torch.zeros(thetas.shape, dtype=torch.int64, device=gradients.device)\n",
                "    total = torch.zeros(thetas.shape, device=gradients.device)\n",
            ),
        ),
    ),
    Defence(
        "a-ledger-that-goes-on",
        "federation/node/test_after_any_run.py::"
        "test_a_run_that_costs_nearly_nothing_leaves_room_for_every_other",
        (
            (
                "gdpfed/privacy/accountants/composition.py",
                '_renyi_total(merged, "fine", filter_curve)',
                '_renyi_total(merged, "fine")',
            ),
        ),
    ),
    Defence(
        "length-of-terms",
        "federation/node/test_large_ledger.py::"
        "test_terms_that_are_too_long_are_refused_before_the_ledger_is_locked",
        (("gdpfed/federation/node/budget.py", "    if size > MOST_TERMS_BYTES:\n", "    if False:\n"),),
    ),
    Defence(
        "length-of-free-runs",
        "federation/node/test_large_ledger.py::"
        "test_runs_that_cost_nothing_are_forgotten_by_their_length_the_oldest_first",
        (
            (
                "gdpfed/privacy/ledgers/client.py",
                "sum(size <= most_bytes for size in islice(accumulate(sizes), most))",
                "most",
            ),
        ),
    ),
    Defence(
        "size-of-a-ledger",
        "federation/node/test_large_ledger.py::"
        "test_a_full_ledger_begins_no_run_and_goes_on_with_those_it_has",
        (
            (
                "gdpfed/federation/node/budget.py",
                "    if file.size <= MOST_LEDGER_BYTES or any(",
                "    if True or any(",
            ),
        ),
    ),
    Defence(
        "range-of-noise",
        "federation/node/test_large_ledger.py::test_noise_that_no_accounting_can_hold_is_refused_in_one_line",
        (
            (
                "gdpfed/federation/node/budget.py",
                "if charge.event.is_noisy and not least <= noise <= most:",
                "if charge.event.is_noisy and noise != noise:",
            ),
        ),
    ),
    Defence(
        "work-that-is-no-text",
        "federation/node/test_large_ledger.py::test_a_work_or_a_kind_that_is_no_text_is_refused_in_one_line",
        (
            (
                "gdpfed/privacy/mechanisms/records/terms.py",
                "        if not isinstance(self.work, str):\n",
                "        if False:\n",
            ),
        ),
    ),
    Defence(
        "work-for-each-group",
        "federation/node/test_record_budget.py::test_work_for_groups_of_records_counts_for_each_of_them",
        (
            (
                "gdpfed/federation/node/budget.py",
                "    groups = num_budgets(terms)\n    for_groups",
                "    groups = 1\n    for_groups",
            ),
        ),
    ),
    Defence(
        "records-of-the-other-unit",
        "federation/node/test_record_budget.py::"
        "test_a_node_with_a_budget_of_the_other_unit_tells_nothing_of_its_records",
        (
            (
                "client_app/node_app.py",
                "    asked = budget.of_unit(own, unit_in(question)) if own else None\n"
                "    if (records := own_records(node.settings, question)) is not None:\n"
                "        answer[RECORDS] = keep_number(node, records)\n",
                "    if (records := own_records(node.settings, question)) is not None:\n"
                "        answer[RECORDS] = keep_number(node, records)\n"
                "    asked = budget.of_unit(own, unit_in(question)) if own else None\n",
            ),
        ),
    ),
    Defence(
        "two-ledgers-that-break-the-terms",
        "federation/node/test_ledger_copy.py::"
        "test_two_ledgers_that_break_the_terms_together_are_refused_with_the_way_on",
        (
            (
                "gdpfed/federation/node/ledger_file.py",
                "        except PrivacyError as error:",
                "        except OSError as error:",
            ),
        ),
    ),
    Defence(
        "part-of-a-lock",
        "federation/node/test_ledger_file.py::test_a_lock_that_was_written_in_part_stands_for_no_ledger",
        (
            (
                "gdpfed/federation/node/ledger_file.py",
                "                    os.truncate(handle, 0)\n",
                "                    pass\n",
            ),
        ),
    ),
    Defence(
        "loss-by-the-batch",
        "learning/test_coupled_records.py::test_a_loss_that_couples_records_of_different_losses_is_refused",
        (
            (
                "gdpfed/learning/training/coupled_records.py",
                "loss, outputs, targets, replaced=TRIED_OUTPUTS // 2)",
                "loss, outputs[:2], targets[:2])",
            ),
        ),
    ),
)


def without(defence: Defence) -> dict[str, str]:
    """Return the text of each file that changes if a defence is removed, by the file's path.

    Raises:
        ValueError: its code is not there: the list has to be mended.
    """
    texts: dict[str, str] = {}
    for file, code, replacement in defence.removals:
        text = texts.get(file) or (PROJECT / file).read_text(encoding="utf-8")
        if text.count(code) != 1:
            raise ValueError(f"{defence.name}: {file} holds {text.count(code)} times {code!r}")
        texts[file] = text.replace(code, replacement)
    return texts


def failure_without(defence: Defence) -> str:
    """Run a defence's test without the defence; return how the test fails, or "" if it passes.

    Raises:
        ValueError: the code or the test is not there.
    """
    with tempfile.TemporaryDirectory() as directory:
        copy = Path(directory)
        copy_of_project(copy, FOLDERS, FILES)
        for file, text in without(defence).items():
            (copy / file).write_text(text, encoding="utf-8")
        test = f"tests/{defence.test}"
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-m", "slow or not slow", test],
            cwd=copy,
            # The line of a failure is as long as its reason.
            env=os.environ | {"PYTHONPATH": str(copy), "COLUMNS": "400"},
            capture_output=True,
            text=True,
            check=False,
        )
    if done.returncode not in (PASSED, FAILED) or "error" in done.stdout.splitlines()[-1]:
        raise ValueError(f"{defence.name}: {test} did not run:\n{done.stdout[-2000:]}")
    failures = [line for line in done.stdout.splitlines() if line.startswith("FAILED ")]
    return failures[0].removeprefix(f"FAILED {test}").removeprefix(" - ") if failures else ""


def main() -> int:
    """Run the chosen defences' tests; return 1 if one passes, or cannot be run, without its defence."""
    names = [defence.name for defence in DEFENCES]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(names)}")
    chosen = parser.parse_args().names or names
    unknown = sorted(set(chosen) - set(names))
    if unknown:
        parser.error(f"unknown: {', '.join(unknown)}; there are {', '.join(names)}")
    console, unnoticed = Console(), 0
    for defence in track([each for each in DEFENCES if each.name in chosen], console=console):
        try:
            failure = failure_without(defence)
            outcome = f"fails without it: {failure}" if failure else "STILL PASSES without it"
        except ValueError as error:
            failure, outcome = "", str(error)
        unnoticed += not failure
        console.print(f"{defence.name}: {defence.test} {outcome}", markup=False)
    return 1 if unnoticed else 0


if __name__ == "__main__":
    raise SystemExit(main())
