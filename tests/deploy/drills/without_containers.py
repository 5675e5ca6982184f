"""Run a section of docs/operations.md word for word: ``python -m tests.deploy.drills.without_containers``.

All parties are on this machine. A systemd of its own runs in a copy of the machine that is thrown away, an
overlay in memory. It needs root and systemd.
"""

import os
import subprocess
import sys
import time
from pathlib import Path

from testing.project import PROJECT
from tests.deploy.drills.page import blocks

SECTION = "Without containers"
BOOT = Path(__file__).with_suffix(".sh")
BUDGETS = {"node-0": "1", "node-1": "2.5", "node-2": "6"}
PUBLIC = "/srv/gdpfed/public"
START_SECONDS = 60.0
# What the section leaves to others: examples, what the consortium signs, and a name for this machine.
EXAMPLES = """
mkdir -p /srv/study /tmp/demo && echo 127.0.0.1 fl.example.org >> /etc/hosts
.venv/bin/python -m deploy.init --nodes 3 --directory /tmp/demo --demo-data >/dev/null
cp /tmp/demo/node-1-superexec/data/examples.npz /srv/study/
"""
ROSTER = """
.venv/bin/gdpfed identity new consortium.key
cd /srv/gdpfed/public
/opt/gdpfed/.venv/bin/gdpfed identity roster roster.json --key /opt/gdpfed/consortium.key \\
    --clients 0=node-0.identity 1=node-1.identity 2=node-2.identity
/opt/gdpfed/.venv/bin/gdpfed identity show /opt/gdpfed/consortium.key > consortium.identity
cd /opt/gdpfed
.venv/bin/flwr build && mv gdpfed.gdpfed.*.fab app.fab
.venv/bin/gdpfed identity sign-app app.fab --key consortium.key --roster /srv/gdpfed/public/roster.json
cp app.fab.signature /srv/gdpfed/public/
for party in server node-0 node-1 node-2; do
.venv/bin/python -m deploy.init --nodes 3 --directory /srv/gdpfed --party $party
done
"""
AUDIT = """
.venv/bin/gdpfed audit /srv/gdpfed/server-superexec/runs/*-run
for node in 0 1 2; do
.venv/bin/gdpfed audit --node-ledger /srv/gdpfed/node-$node-superexec/ledger/ledger.json
done
systemctl --no-pager --no-legend list-units 'gdpfed-*'
"""


def main() -> int:
    """Run commands of docs/operations.md under systemd; return the first exit status that is not 0, or 0."""
    server, node, restart, train = blocks(SECTION)
    # On this machine the certificate is where it is to be put.
    copied = f"rm -r units\ncp {PUBLIC}/superlink-ca.crt .\nrm {PUBLIC}/superlink-ca.crt\n"
    of_node = [
        copied + node.replace("node-1", name).replace("--epsilon 2.5", f"--epsilon {epsilon}")
        for name, epsilon in BUDGETS.items()
    ]
    script = "\n".join(["set -ex", EXAMPLES, server, *of_node, ROSTER, restart, "sleep 45"])
    last = "\n".join(["set -ex", "rm -r units", server.splitlines()[1], train, AUDIT])
    command = ["unshare", "--mount", "--pid", "--fork", "--ipc", "--cgroup", "bash", str(BOOT), str(PROJECT)]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as boot:
        try:
            pid = _systemd(boot.pid)
            for words in (script, last):
                inside = ["nsenter", "-t", str(pid), "-m", "-p", "-C", "-r", "bash", "-c"]
                environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/tmp"}  # noqa: S108 - inside
                done = subprocess.run([*inside, f"cd /opt/gdpfed\n{words}"], env=environment, check=False)
                if done.returncode != 0:
                    return done.returncode
        finally:
            os.kill(pid, 9)
    return 0


def _systemd(parent: int) -> int:
    """Wait until ``parent`` has started systemd in the new namespaces; return systemd's process id."""
    children = Path(f"/proc/{parent}/task/{parent}/children")
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        for child in children.read_text().split():
            if Path(f"/proc/{child}/comm").read_text().strip() == "systemd":
                time.sleep(5)
                return int(child)
        time.sleep(0.5)
    raise TimeoutError(f"systemd is not there after {START_SECONDS:g} s")


if __name__ == "__main__":
    sys.exit(main())
