"""Drills on backups: the server is restored, an older ledger is put back, and a node's folder is deleted."""

import json
import re
import shutil
from functools import partial
from pathlib import Path

from deploy.topology import GATE, LEDGER, SERVER_SUPEREXEC, STATE, SUPERLINK
from gdpfed.audit.run_audit import audit_run
from tests.deploy.checks import Checks
from tests.deploy.drills.day import LITTLE, TWO
from tests.deploy.drills.page import blocks
from tests.deploy.drills.processes import Host, shell

THREE = (*LITTLE, "run.num_rounds=3")
THREE_ROUNDS = [0, 1, 2]
OF_SERVER = (SUPERLINK, GATE, SERVER_SUPEREXEC)
BACKUP, PUT_BACK, LOST = "Backup and restore", "A ledger that was put back", "A folder that is lost"


def backup(host: Host, check: Checks) -> None:
    """Drill: back up the server in a run, train one more round, delete the server's folders, restore them."""
    keep, restore = blocks(BACKUP)
    nodes, name = host.nodes, "kept"

    def lost() -> bool:
        host.lose(*OF_SERVER)
        return not host.files(name).exists()

    def restored() -> bool:
        host.follow(restore, run=name)
        return host.charged(name) == len(THREE_ROUNDS) and audit_run(host.files(name)).passed

    check("a run of three rounds pauses after the first", lambda: host.until_round(name, 1, THREE))
    check("the server is stopped, copied and started", lambda: host.follow(keep) is not None)
    check("the run goes on to its second round", lambda: host.until_round(name, 2, THREE))
    check("the server loses its folders", lost)
    check("they are restored, nodes come back by themselves, and the run is resumed to its end", restored)
    check(
        "the round since the backup has no sum, since its nodes do not take it twice",
        lambda: host.sums(name) == [[len(nodes)], [0], [len(nodes)]],
    )
    check(
        "each round is charged once, in the ledger of each node",
        lambda: all(host.charged_by(node) == [THREE_ROUNDS] for node in nodes),
    )


def ledgers(host: Host, check: Checks) -> None:
    """Drill: replace a node's ledger by an older version, and later both the ledger and its copy."""
    accept, confirm = blocks(PUT_BACK)
    node = host.nodes[1]
    places = (host.root / node.superexec / LEDGER, host.root / node.guard / STATE)
    old = host.folder / "old"
    one_run, lacks = [[0, 1]], r"ledger=\S+ lacks 2 rounds in which the server has received updates"

    def copied() -> bool:
        old.mkdir()
        for place in places:
            shell(f"cp --archive {place} {old}", host.folder)
        return host.charged_by(node) == one_run

    def put_back(*chosen: Path) -> None:
        host.stop(node.guard)
        for place in chosen:
            shutil.rmtree(place)
            shell(f"cp --archive {old / place.name} {place.parent}", host.folder)
        host.up()

    def one() -> bool:
        put_back(places[0])
        return host.charged_by(node) == one_run and host.refused("one", r"ledger=\S+ differs from its copy")

    def accepted() -> bool:
        host.follow(accept)
        return host.charged_by(node) == [*one_run, [0, 1]]

    def both() -> bool:
        put_back(*places)
        refused = host.refused("both", "ledger lacks runs that it has taken part in")
        return refused and re.search(lacks, " ".join(host.running.log(node.guard).split())) is not None

    def confirmed() -> bool:
        host.follow(confirm)
        return host.trained("confirmed") and host.charged_by(node) == [*one_run, [0]]

    check(
        "a run of two rounds, after which a node's ledger and its copy are copied",
        lambda: host.trained("first", TWO) and copied(),
    )
    check("another run of two rounds", lambda: host.trained("second", TWO))
    check("the older ledger is put back: the node refuses, in one line", one)
    check("accept-ledger goes on from the larger spend of both", accepted)
    check("both places are put back: the server tells, and the node refuses, in one line", both)
    check("with a lower budget and the operator's word it takes part again", confirmed)


def lost(host: Host, check: Checks) -> None:
    """Drill: the folders of a node are deleted, and then the folders of the server."""
    spent, again = blocks(LOST)
    node, name = host.nodes[1], "begun"

    def down_and_up() -> bool:
        host.compose(["down"])
        host.compose(["up", "--detach", "--wait"])
        return host.charged(name) == 1

    def identities() -> dict[str, str]:
        return dict(json.loads(host.roster.read_bytes())["clients"])

    def node_lost() -> bool:
        before = identities()
        host.lose(node.supernode, node.superexec, node.guard)
        host.follow(again)
        after = identities()
        return {client for client in before if before[client] != after[client]} == {str(node.client_id)}

    def server_lost() -> bool:
        host.lose(*OF_SERVER)
        host.compose(["up", "--detach", "--wait"])
        return not host.files(name).exists()

    check("a run of two rounds pauses after the first", lambda: host.until_round(name, 1, TWO))
    check(
        "after down and up all is there",
        down_and_up,
    )
    check("what a node has spent is in the server's run", partial(_spent, host, spent, name))
    check("a node loses its folders, and comes back as another one with a lower budget", node_lost)
    check("the run that it had begun is not resumed", lambda: host.refused(name, "identit|roster", TWO))
    check("its ledger begins from zero", lambda: host.trained("after") and host.charged_by(node) == [[0]])
    check("the server loses its folders: it has no runs, and knows all nodes", server_lost)
    check("the nodes' ledgers go on", lambda: host.trained("anew") and host.charged_by(node) == [[0], [0]])


def _spent(host: Host, words: str, name: str) -> bool:
    """Run documented audit commands; return whether 1 of 2 rounds is charged and the run passes its audit."""
    said = host.follow(words, run=name)
    return "1 of 2 rounds charged" in said and audit_run(host.files(name)).passed


PARTS = {"backup": backup, "ledgers": ledgers, "lost": lost}
