"""The settings of a node, as its operator's file or command has them."""

from collections.abc import Callable
from dataclasses import dataclass

from deploy.federation import Federation, Node
from gdpfed.federation.node.node_config import (
    AVERSION_KEY,
    CAP_KEY,
    FIRST_BUDGET_KEY,
    LEDGER_COPY_KEY,
    LOST_ROUNDS_KEY,
    MOST_ROUNDS_KEY,
    RAISED_KEY,
    SETTING_OF,
)

CAP_SETTING = CAP_KEY.replace("-", "_").upper()
# How long an edge client waits for its edge: as long as several exchanges of the edge may take.
INTERVAL_SECONDS = 3600

OwnVariable = Callable[[Node, str, str], str]
"""A variable with a node's own number, such as its EPSILON, and its default."""


@dataclass(frozen=True)
class NodePaths:
    """Where what answers for a node finds its files; `ledger_copy` is empty where there is none."""

    identity: str
    roster: str
    consortium: str
    ledger: str
    data: str
    mailbox: str
    ledger_copy: str = ""


def settings_words(federation: Federation, node: Node, paths: NodePaths, own: OwnVariable) -> str:
    """Return the operator's settings of a node: number, budget, ledger, data, limits on sums.

    The budget is also its limit against the server, for which it need not believe that it is drawn at the
    rate that it is told. It falls short where a rate is below 1, and the operator may raise it.

    A node that lets updates leave in clear says so by a word of its own: to the edge that it trusts, or, an
    edge client, to the cloud.
    """
    identity = (
        f'identity-file="{paths.identity}" roster-file="{paths.roster}" consortium-key="{paths.consortium}"'
    )
    if federation.of_edges:
        edge_client = f'edge="{paths.mailbox}" edge-seconds={INTERVAL_SECONDS} secagg-mode="off"'
        return f"partition-id={node.client_id} {edge_client} {identity}"
    mode = "edge-trusted=true" if federation.trusts_edge else f'secagg-mode="{federation.secagg_mode}"'
    epsilon = own(node, "EPSILON", repr(node.epsilon))
    copy = f'{LEDGER_COPY_KEY}="{paths.ledger_copy}" ' if paths.ledger_copy else ""
    # Records are drawn on the node, and an edge that is trusted sees everything: neither draws on belief.
    believes = not federation.about_records and not federation.trusts_edge
    raised = f"{RAISED_KEY}={own(node, 'RAISED_FROM', '0.0')} "
    lost = f"{LOST_ROUNDS_KEY}={own(node, 'LOST_ROUNDS', '0')} "
    most = f"{CAP_KEY}={own(node, CAP_SETTING, epsilon)} " if believes else ""
    return (
        f"partition-id={node.client_id} {SETTING_OF[federation.unit]}={epsilon} {most}{raised}{lost}"
        f'ledger="{paths.ledger}" {copy}data="{paths.data}" '
        f"minimum-cohort={federation.minimum_cohort} {mode} "
        f"{_types(federation, node, own)}{identity}"
    )


def _types(federation: Federation, node: Node, own: OwnVariable) -> str:
    """How a node plays a game about budgets, and in how many rounds it takes part; empty where unsaid."""
    most = "" if federation.most_rounds is None else f"{MOST_ROUNDS_KEY}={federation.most_rounds} "
    if node.aversion is None or node.first_budget is None:
        return most
    return (
        f"{AVERSION_KEY}={own(node, 'AVERSION', repr(node.aversion))} "
        f"{FIRST_BUDGET_KEY}={own(node, 'FIRST_BUDGET', repr(node.first_budget))} {most}"
    )
