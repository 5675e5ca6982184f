"""Change a node's part of docker-compose.yml: its settings, its guard process, its app signature check."""

import re
from collections.abc import Sequence

from deploy.description import ROOT, Tree, bind
from deploy.federation import EXAMPLES_FILE, Federation, Node
from deploy.warm import TRAINS
from gdpfed.federation.node.node_config import SETTING_OF
from secagg import OFF

# How long an edge client waits for its edge: as long as several exchanges of the edge may take.
INTERVAL_SECONDS = 3600


def settings_of(text: str, federation: Federation, node: Node, budget: str) -> str:
    """Return one node's settings as text: those in docker-compose.yml, adapted to node and federation.

    The budget is also its limit against the server, for which it need not believe that it is drawn at the
    rate that it is told. It falls short where a rate is below 1, and the operator may raise it. Records are
    drawn on the node, and an edge that is trusted sees everything: neither draws on belief.

    Args:
        text: of the description, between whose words are blanks; what no option is about stays as it is.
        federation: whose limits the node has.
        node: whose settings they are.
        budget: its epsilon, a number or a variable of Compose.
    """
    own = dict(word.partition("=")[::2] for word in text.split(" "))
    described = own["epsilon"]
    own |= {
        key: own[key].replace(described, budget)
        for key in ("epsilon", "max-epsilon-against-server")
        if key in own
    }
    if federation.about_records:
        own = {SETTING_OF["record"] if key == "epsilon" else key: value for key, value in own.items()}
    if federation.about_records or federation.trusts_edge:
        own.pop("max-epsilon-against-server", None)
    if federation.examples != EXAMPLES_FILE:
        own["data"] = f'"/data/{federation.examples}"'
    own["secagg-mode"] = f'"{federation.secagg_mode}"'
    if federation.trusts_edge:
        own = {("edge-trusted" if key == "secagg-mode" else key): value for key, value in own.items()}
        own["edge-trusted"] = "true"
    if federation.unguarded:
        own.pop("ledger-copy", None)
    for key, number in (("aversion", node.aversion), ("first-budget", node.first_budget)):
        if number is not None:
            variable = f"NODE_{node.client_id}_{key.replace('-', '_').upper()}"
            own[key] = f"${{{variable}:-{number!r}}}"
    if federation.most_rounds is not None:
        own["max-participations"] = str(federation.most_rounds)
    return " ".join(f"{key}={value}" for key, value in own.items())


def guard_of_edge_client(guard: Tree, node: Node) -> None:
    """Replace data and ledger by a shared folder in the Compose service that guards an edge server's client.

    It says by a word of its own that updates may leave in clear: what it sends is the mean of an edge.
    """
    identity = re.search("identity-file=.*", guard["command"][-1])
    edge = f'edge="/mailbox" edge-seconds={INTERVAL_SECONDS} secagg-mode="{OFF}"'
    guard["command"][-1] = f"partition-id={node.client_id} {edge} {identity[0] if identity else ''}"
    shared = bind(f"{ROOT}/{node.superexec}/mailbox", "/mailbox", writable=True)
    credentials, socket = (each for each in guard["volumes"] if each["target"] in ("/federation", "/guard"))
    guard["volumes"] = [credentials, shared, socket]


def without_guard(services: Tree, node: Node) -> None:
    """Remove the process that guards a node's data and ledger; the Flower app then uses both itself."""
    supernode, app, guard = services[node.supernode], services[node.superexec], services.pop(node.guard)
    supernode["command"][-1] = guard["command"][-1]
    app["entrypoint"].insert(app["entrypoint"].index("deploy.warm") + 1, TRAINS)
    own = [each for each in guard["volumes"] if each["target"] in ("/data", "/ledger", "/mailbox")]
    app["volumes"] = [each for each in app["volumes"] if each["target"] == "/federation"] + own
    app["deploy"], app["x-memory"] = guard["deploy"], guard["x-memory"]


def without_signatures(services: Tree, supernodes: Sequence[str]) -> None:
    """Make nodes run any Flower app that a run sends, signed or not, with Flower's own SuperNode."""
    for name in supernodes:
        service = services[name]
        image = service.pop("build")["args"]["SUPEREXEC_IMAGE"]
        service["image"] = image.replace("SUPEREXEC", "SUPERNODE").replace("superexec", "supernode")
        service["entrypoint"][-1] = "flower-supernode"
        service["command"] = service["command"][service["command"].index("--isolation") :]
        service["volumes"] = [each for each in service["volumes"] if each["target"] != "/seen"]
    train = services["train"]
    words = train["entrypoint"]
    train["entrypoint"] = [*words[: words.index("--signature")], *words[words.index("--") :]]
    train["volumes"] = [each for each in train["volumes"] if each["target"] != "/state"]
