"""Every file that a command names is there, and no secret is seen by two parties."""

from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import Any

from deploy.credentials import AUTHORITY_KEY, SECRETS
from deploy.placements import CREDENTIALS
from deploy.topology import IDENTITY_FILE, TLS_KEY_FILE

HOST_ROOT = PurePosixPath("./federation")


def file_problems(tree: dict[str, Any], root: Path) -> Iterator[str]:
    """Files that a command names and init did not make; ``root`` is where it made them."""
    for name, service in _long_running(tree):
        sources = {v["target"]: v["source"] for v in service.get("volumes", [])}
        for word in service["command"]:
            if word.startswith(f"{CREDENTIALS}/"):
                file = _on_host(root, sources.get(CREDENTIALS)) / PurePosixPath(word).name
                if not file.is_file():
                    yield f"{name}: {word} is not made by init"


def secret_problems(tree: dict[str, Any], root: Path) -> Iterator[str]:
    """Directories that two services share, secrets that two parties hold, and keys where they must not be."""
    holders: defaultdict[bytes, set[str]] = defaultdict(set)
    viewers: defaultdict[str, list[str]] = defaultdict(list)
    for name, service in _long_running(tree):
        for volume in service.get("volumes", []):
            viewers[volume["source"]].append(name)
            if not volume.get("read_only") and volume["target"] == CREDENTIALS:
                yield f"{name}: can change its credentials"
            for file in sorted(_on_host(root, volume["source"]).rglob("*")):
                yield from _key_problems(name, service, file)
                if file.name in SECRETS:
                    holders[file.read_bytes()].add(party_of(tree, name))
    for source, names in viewers.items():
        if len(names) > 1:
            yield f"{source} is seen by {', '.join(names)}"
    for parties in holders.values():
        if len(parties) > 1:
            yield f"one secret is held by {', '.join(sorted(parties))}"


def _key_problems(name: str, service: dict[str, Any], file: Path) -> Iterator[str]:
    if file.name == AUTHORITY_KEY:
        yield f"{name}: sees the authority's key"
    if file.name in (IDENTITY_FILE, TLS_KEY_FILE) and service["entrypoint"] == ["flower-superexec"]:
        yield f"{name}: runs the app and sees {file.name}"


def _long_running(tree: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    return ((name, service) for name, service in tree["services"].items() if service.get("restart") != "no")


def party_of(tree: dict[str, Any], name: str) -> str:
    """The network that a service shares with its partner only."""
    networks = tree["services"][name]["networks"]
    return next((each for each in networks if tree["networks"][each].get("internal")), name)


def _on_host(root: Path, source: str | None) -> Path:
    if source is None:
        return root / "nowhere"
    path = PurePosixPath(source)
    return root / path.relative_to(HOST_ROOT) if path.is_relative_to(HOST_ROOT) else Path(source)
