"""Every container may do nothing but its work."""

from collections.abc import Iterator
from typing import Any

# It hands the files that it makes to the user of the services, and must be root for that.
ROOT_JOB = "init"
ROOT_CAPABILITIES = {"CHOWN", "DAC_OVERRIDE", "FOWNER"}


def confinement_problems(tree: dict[str, Any]) -> Iterator[str]:
    """Containers with more rights or fewer limits than are promised."""
    for name, service in tree["services"].items():
        yield from (f"{name}: {problem}" for problem in _rights(name, service))
        if service.get("restart") != "no":
            if not service.get("healthcheck", {}).get("test"):
                yield f"{name}: has no health check"
            if _runs_app(service):
                yield from (f"{name}: {problem}" for problem in _reach(service, tree["networks"]))


def _rights(name: str, service: dict[str, Any]) -> Iterator[str]:
    root = service.get("user", "0").partition(":")[0] in ("0", "root")
    if root and name != ROOT_JOB:
        yield "runs as root"
    if root and service.get("network_mode") != "none":
        yield "is root and has a network"
    if service.get("cap_drop") != ["ALL"]:
        yield "keeps capabilities: cap_drop must be ALL"
    extra = set(service.get("cap_add", [])) - (ROOT_CAPABILITIES if name == ROOT_JOB else set())
    if extra:
        yield f"adds capabilities {', '.join(sorted(extra))}"
    if service.get("privileged"):
        yield "is privileged"
    if not service.get("read_only"):
        yield "can write to its image"
    if "no-new-privileges:true" not in service.get("security_opt", []):
        yield "can gain privileges"
    limits = service.get("deploy", {}).get("resources", {}).get("limits", {})
    missing = {"cpus", "memory", "pids"} - limits.keys()
    if missing:
        yield f"has no limit of {', '.join(sorted(missing))}"


def _runs_app(service: dict[str, Any]) -> bool:
    return bool(service["entrypoint"] == ["flower-superexec"])


def _reach(service: dict[str, Any], networks: dict[str, Any]) -> Iterator[str]:
    """The app's code is sent by whoever may submit runs: it must reach nothing but its own Flower program."""
    for network in service.get("networks", []):
        if not networks[network].get("internal"):
            yield f"runs the app and is on network {network}, which leads outside"
    if service.get("ports"):
        yield "runs the app and publishes a port"
