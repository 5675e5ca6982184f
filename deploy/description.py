"""Read ``docker-compose.yml`` as plain data, and write the other Compose files that are made from it."""

import json
import re
import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from deploy.federation import TopologyError
from gdpfed.installed import SOURCES
from gdpfed.json_files import read_json
from gdpfed.yaml_files import read_yaml

FILE = SOURCES / "docker-compose.yml"
ROOT = "${FEDERATION_DIR:-./federation}"
_VOLUME = re.compile(r"(?P<source>.+?):(?P<target>/[\w/-]*)(?P<read_only>:ro)?")
_BY_DIGEST = re.compile(r"[a-z0-9./:_-]+@sha256:[0-9a-f]{64}")
_VARIABLE = re.compile(r"\$\{(\w+)(?::([-?])([^${}]*))?\}")

Tree = dict[str, Any]
"""A Compose file: the name of the project, services, networks."""


def described(file: Path = FILE) -> Tree:
    """Return a Compose file with each service complete: commands as lists of words, volumes in long form.

    Its services and networks share nothing, so that one can be changed without another.

    Raises TopologyError: it is not there, is no YAML, or has a volume that is none.
    """
    tree: Tree = read_json(_text(file))
    return tree


@cache
def _text(file: Path) -> str:
    try:
        read = read_yaml(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise TopologyError(f"{file} cannot be read: {reason}; restore it from the checkout") from None
    services = {}
    for name, service in read["services"].items():
        lists = {key: words(service[key]) for key in ("entrypoint", "command") if key in service}
        services[name] = service | lists | {"volumes": [volume(each) for each in service["volumes"]]}
    return json.dumps({"name": read["name"], "services": services, "networks": read["networks"]})


def words(command: str | list[str]) -> list[str]:
    """Return a command's words; a command in one line is split as a shell does."""
    return shlex.split(command) if isinstance(command, str) else list(command)


def volume(text: str) -> Tree:
    """Return the long form of a Compose volume ``source:target`` or ``source:target:ro``."""
    parts = _VOLUME.fullmatch(text)
    if parts is None:
        raise TopologyError(
            f"{text} in {FILE.name} is not a volume: write SOURCE:/TARGET or SOURCE:/TARGET:ro"
        )
    return bind(parts["source"], parts["target"], writable=parts["read_only"] is None)


def bind(source: str, target: str, *, writable: bool = False, made: bool = True) -> Tree:
    """Return a Compose volume for a host directory; with ``made``, Docker creates a missing directory."""
    mounted: Tree = {"type": "bind", "source": source, "target": target}
    return mounted | ({} if writable else {"read_only": True}) | {"bind": {"create_host_path": made}}


def said(text: str, variables: Mapping[str, str]) -> str:
    """Substitute variables in a text as Compose does: given values, else defaults; $$ becomes one dollar.

    Raises TopologyError: a variable that has no default is not set.
    """

    def value(found: re.Match[str]) -> str:
        name, kind, word = found.groups()
        if kind == "?" and not variables.get(name):
            raise TopologyError(str(word))
        return variables.get(name) or (word if kind == "-" else "") or ""

    while (replaced := _VARIABLE.sub(value, text)) != text:
        text = replaced
    return text.replace("$$", "$")


def pinned(tree: Tree, variables: Mapping[str, str]) -> Tree:
    """Return a Compose file that names Flower's images by the digests in environment variables.

    Raises TopologyError: a variable says none; its line names the command that prints it.
    """
    text = json.dumps(tree)
    for by_tag, name, tagged in set(re.findall(r"(\$\{((?:SUPERNODE|SUPEREXEC)_IMAGE):-([^}]+)\})", text)):
        image = variables.get(name, "")
        if not _BY_DIGEST.fullmatch(image):
            raise TopologyError(
                f"{name}={image} names no digest: set it to {tagged.partition(':')[0]}@sha256:..., which "
                f"docker buildx imagetools inspect {tagged} prints"
            )
        text = text.replace(by_tag, image)
    by_digest: Tree = json.loads(text)
    return by_digest


def to_text(tree: Tree, header: str) -> str:
    """Write a Compose file as YAML without aliases, so that every service can be read alone."""
    comment = "".join(f"# {line}\n" for line in header.splitlines())
    return comment + yaml.dump(tree, Dumper=_Plain, sort_keys=False, width=110)


class _Plain(yaml.SafeDumper):
    """A YAML writer that repeats a value instead of writing an alias."""

    def ignore_aliases(self, data: Any) -> bool:
        return True
