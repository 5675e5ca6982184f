"""Tests of the model card's sentences on privacy: what holds, against whom, and how well attackers guess."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from conf.load import load
from gdpfed.methods import make_method, resolve
from gdpfed.privacy.mechanisms.records.report import RecordReport
from gdpfed.privacy.mechanisms.sampled.report import in_plain_words
from gdpfed.privacy.mechanisms.scheduled.report import _noise as new_noise
from gdpfed.report.comparison_tables import budgets_table
from gdpfed.report.mechanism_reports import report_of
from gdpfed.report.model_card import _how_much as how_much

RECORDS = ("dataset=breast_cancer", "privacy=record_level", "method.chosen=[]", "privacy.budgets=[1]")


def plan_of(*overrides):
    return make_method(resolve(load(overrides))).plan


@pytest.fixture(scope="module")
def demo():
    return plan_of("method=gdpfed_star")


def test_the_factor_is_of_what_was_contributed_and_delta_is_left_out_of_it(demo):
    factors = ", ".join(f"{math.exp(e):.3g} (group {m})" for m, e in enumerate((1, 3, 6)))
    assert in_plain_words(demo) == (
        "In plain words: what a client's data contributed, its turns and its noise aside, multiplies the "
        f"probability of anything by at most {factors}, except with probability delta = 1e-05."
    )


def test_tries_are_of_one_participant_one_question_and_even_odds(demo):
    subject: Any = SimpleNamespace(plan=demo, charged_rounds=demo.num_rounds, parties=())
    said = how_much(subject)
    rights = [math.ceil(100 * demo.inference_bound(m).accuracy_at_even_odds) for m in range(3)]
    assert rights == [56, 65, 75]
    for right in rights:
        assert f"in {right} of 100 tries" in said
    assert "Suppose that a coin decides whether one participant is" in said
    assert "of one participant and one question: who knew before that it was probably there is right" in said


@pytest.mark.parametrize(
    ("method", "secagg", "said", "not_said"),
    [
        ("dp_sgd", "pairwise", "each client added all of its noise itself", "its own share"),
        (
            "dp_sum",
            "pairwise",
            "its own share of a sum's noise, and the noise was sized without it",
            "itself",
        ),
        ("dp_sum", "off", "so the same figures hold against the other clients", "server that follows"),
    ],
)
def test_who_added_the_noise_of_records_says_against_whom_it_holds(method, secagg, said, not_said):
    plan = plan_of(*RECORDS, f"method={method}", f"secagg={secagg}")
    report = report_of(plan)
    assert isinstance(report, RecordReport)
    sentence = report.against_others(plan)
    assert said in sentence
    assert not_said not in sentence


def test_each_groups_noise_is_said_with_the_share_that_later_rounds_subtract():
    said = new_noise(plan_of("method=gdpfed_plus", "privacy.against=everyone"))
    assert said.startswith(
        "one sum a group; group 0: new noise of standard deviation 18.313 a round, of which the next round "
        "subtracts the share 0.809; group 1: new noise of standard deviation 11.182 a round, of which"
    )


def test_whom_the_larger_epsilon_of_a_table_holds_against_is_a_sentence_of_its_own():
    note = budgets_table([]).note
    assert "Against these the figure in the column vs server holds. It assumes a client that" in note
