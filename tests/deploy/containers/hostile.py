"""Checks that a hostile app cannot read its node's data, ledger or keys, which only the guard can read."""

import json
from collections.abc import Callable

from deploy.federation import Node
from tests.deploy.containers.engine import Project

FILES = ("/data", "/federation/identity.key", "/ledger")
GUARD, INSIDE, PLACE = "a guard's process", "a guard's environment", "the socket's place"
STEAL = f"""
import json, os
got = [path for path in {FILES} if os.access(path, os.R_OK)]
for pid in filter(str.isdigit, os.listdir("/proc")):
    try:
        program, *words = open(f"/proc/{{pid}}/cmdline", "rb").read().split(b"\\0")
        if program.endswith(b"python") and b"client_app.guard" in words:
            got.append({GUARD!r})
            open(f"/proc/{{pid}}/environ", "rb").read(1)
            got.append({INSIDE!r})
    except OSError:
        pass
try:
    os.rename("/guard/guard.sock", "/guard/other")
    os.rename("/guard/other", "/guard/guard.sock")
    got.append({PLACE!r})
except OSError:
    pass
print(json.dumps(sorted(set(got))))
"""


def gets_nothing(project: Project, node: Node, check: Callable[[str, Callable[[], object]], bool]) -> None:
    """Check that hostile code can read a node's files in the guard's container, but none in the app's."""
    check(
        "code in a node's app gets no data, ledger, identity or guard, and cannot move the guard's socket",
        lambda: stolen(project, node.superexec) == [],
    )
    check(
        "the same code beside the guard gets the files, and still nothing of the guard's memory",
        lambda: stolen(project, node.guard) == sorted([*FILES, GUARD, PLACE]),
    )
    check("a guard is on no network", lambda: interfaces(project, node.guard) == ["lo"])


def stolen(project: Project, service: str) -> list[str]:
    """Run hostile code in a service's container and return the names of what it could get."""
    return list(json.loads(project.compose("exec", "--no-TTY", service, "python", "-c", STEAL)))


def interfaces(project: Project, service: str) -> list[str]:
    """Return the names of the network interfaces of a service's container."""
    lines = project.compose("exec", "--no-TTY", service, "cat", "/proc/net/dev").splitlines()[2:]
    return [line.partition(":")[0].strip() for line in lines]
