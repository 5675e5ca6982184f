"""A test that a node does only those kinds of local work for which it has agreed to be charged."""

from types import SimpleNamespace
from typing import Any

from gdpfed.errors import PrivacyError
from gdpfed.privacy.allocation import AllocatedGaussian
from gdpfed.privacy.charges import Charge
from gdpfed.privacy.correlated_noise import CorrelatedGaussian
from gdpfed.privacy.events import (
    DPSGDSteps,
    Event,
    Gaussian,
    GaussianMixture,
    LocalWindows,
    SampledGaussian,
)
from gdpfed.privacy.ledgers.terms import TERMS
from gdpfed.privacy.mechanisms.records.terms import RecordTerms
from gdpfed.record_steps import KINDS, WORKS, RecordSteps

NOISE: dict[str, Any] = {"noise_stddev": 5.0, "clipping_norm": 1.0}
STEPS: dict[str, Any] = {"batch_rate": 1.0, "noise_multiplier": 5.0, "num_steps": 1}
# One step, one round and one member, so that all other figures fit whatever the work is.
EVENTS: dict[str, Event] = {
    "sampled_gaussian": SampledGaussian(sampling="poisson", sampling_rate=1.0, group_size=1, **NOISE),
    "gaussian": Gaussian(**NOISE, adjacency="replace_one"),
    "dp_sgd_steps": DPSGDSteps(**STEPS),
    "gaussian_mixture": GaussianMixture(noise_stddev=5.0, sensitivities=(0.0, 1.0), weights=(0.5, 0.5)),
    "convex windows": LocalWindows(bound="convex", window_steps=1, **STEPS),
    "clipped windows": LocalWindows(bound="window", window_steps=1, **STEPS),
    "allocated_gaussian": AllocatedGaussian(block_rounds=1, **NOISE),
    "correlated_gaussian": CorrelatedGaussian(num_rounds=1, turns=(0,), taps=(), **NOISE),
}
OWN: dict[str, dict[str, Any]] = {
    "scheduled_sums": {"most_turns": 1, "separation": 1},
    "own_spending": {"most_rounds": 1},
}
# A client's cost is one for all of norm C: an update, rates on held-out records, or counts.
OF_NORM_C = ("update", "held_out_rates", "client_statistics")
CHARGED = {
    *(("sampled_sums", "sampled_gaussian", work) for work in OF_NORM_C),
    *(("allocated_sums", "allocated_gaussian", work) for work in OF_NORM_C),
    *(("scheduled_sums", "correlated_gaussian", work) for work in ("update", "client_statistics")),
    *(("record_sums", "dp_sgd_steps", work) for work in ("dp_sgd", "gradient_sum", "record_statistics")),
    ("local_windows", "convex windows", "convex_steps"),
    ("local_windows", "clipped windows", "window_steps"),
    ("own_spending", "gaussian", "dp_sgd"),
}


def agreed(mechanism: str, event: Event, work: str) -> bool:
    """Return whether a node accepts terms that charge the event, and then accepts the local work."""
    made, own = TERMS.get(mechanism), OWN.get(mechanism, {})
    try:
        if made.unit == "record":
            one: dict[str, Any] = {
                "num_rounds": 1,
                "clipping_norm": 1.0,
                "batch_rates": (1.0,),
                "shares": (1.0,),
            }
            own = {**own, "records": RecordTerms(work=work, **one)}
        charges = (Charge(event=event, count=1, unit=made.unit),)
        common: dict[str, Any] = {
            "run": "run",
            "group": 0,
            "epsilon": 1.0,
            "delta": 1e-5,
            "accountant": "pld",
        }
        terms = made(**common, charges=charges, sums_hidden=True, **own)
    except PrivacyError:
        return False
    steps = RecordSteps(num_steps=1, batch_rates=(1.0,), clipping_norm=0.5, noise_multiplier=5.0)
    told: Any = SimpleNamespace(
        work=work, noise="gaussian", clipping_norm=1.0, weight=1.0, records=steps, record_groups=((1.0,), 0)
    )
    return not terms.broken_by(0, told, 1.0)


def test_a_node_computes_what_its_terms_charge_and_nothing_else():
    assert {type(event).kind for event in EVENTS.values()} == set(Event.kinds)
    assert set(KINDS) <= set(WORKS.names())
    found = {
        (mechanism, name, work)
        for mechanism in TERMS.names()
        for name, event in EVENTS.items()
        for work in WORKS.names()
        if agreed(mechanism, event, work)
    }
    assert found == CHARGED
