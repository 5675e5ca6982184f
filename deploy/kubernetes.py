"""``python -m deploy.kubernetes``: print credentials as Kubernetes Secrets; convert Compose files for Helm.

The chart ``deploy/helm`` has no list of services: its values are the Compose file of one party, in the words
of Kubernetes. Credentials are made by ``deploy.init`` on the operator's machine, as for Compose. A Job that
wrote them in the cluster would have to be allowed to read every Secret of the namespace.
"""

import argparse
import os
import re
from base64 import b64encode
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from deploy.compose import INIT, METRICS
from deploy.description import Tree, said
from deploy.federation import TopologyError
from deploy.options import exit_status
from deploy.topology import CREDENTIALS, DATA, PUBLIC, PUBLIC_PATH

SECRETS, CLAIMS = {CREDENTIALS: "own", PUBLIC_PATH: "public"}, "claims"


def values_of(tree: Tree, variables: Mapping[str, str]) -> Tree:
    """Convert one party's Compose file to values for the Helm chart.

    Args:
        tree: the Compose file of the party.
        variables: what the file's variables are set to; the others have their defaults.

    Raises TopologyError: a variable that has no default is not set.
    """
    programs = {
        name: each for name, each in tree["services"].items() if METRICS not in each.get("profiles", ())
    }
    made = {name: _program_of(each, variables) for name, each in programs.items() if name != INIT}
    images = {_image_name(each["image"]): each["image"] for each in made.values()}
    for each in made.values():
        each["image"] = _image_name(each["image"])
    long_running = {name for name, each in programs.items() if each["restart"] != "no"}
    return {
        "images": images,
        "services": {name: each for name, each in made.items() if name in long_running},
        "jobs": {name: each for name, each in made.items() if name not in long_running},
        "networks": {
            name: {"internal": each["internal"]} for name, each in tree["networks"].items() if name != METRICS
        },
    }


def _image_name(image: str) -> str:
    """Return the last part of an image's name, without its tag or digest."""
    return re.split("[:@]", image.rpartition("/")[2])[0]


def _program_of(service: Tree, variables: Mapping[str, str]) -> Tree:
    """Convert one Compose service to an entry of the Helm chart's values."""
    command = [said(word, variables) for word in [*service["entrypoint"], *service.get("command", [])]]
    limits = service["deploy"]["resources"]["limits"]
    made: Tree = {
        "image": said(service["image"], variables),
        "command": command,
        "environment": {name: said(value, variables) for name, value in service["environment"].items()},
        "cpu": said(limits["cpus"], variables),
        "memory": re.sub(r"([MG])$", r"\1i", limits["memory"]),
        "gpu": "reservations" in service["deploy"]["resources"],
        "networks": service.get("networks", []),
        "published": "ports" in service,
        "asked": "profiles" in service,
        "secrets": {},
        "data": "",
        CLAIMS: {},
    }
    if "--port" in command:
        made["port"] = int(command[command.index("--port") + 1])
    if "healthcheck" in service:
        made["probe"] = [said(word, variables) for word in service["healthcheck"]["test"][1:]]
    for volume in service["volumes"]:
        target = volume["target"]
        if target in SECRETS:
            made["secrets"][target] = SECRETS[target]
        elif target == f"/{DATA}":
            made["data"] = target
        else:
            path = PurePosixPath(said(volume["source"], variables))
            claim = {"path": target, "read_only": bool(volume.get("read_only"))}
            made[CLAIMS][f"{path.parent.name}-{path.name}"] = claim
    return made


def secrets_of(root: Path) -> list[dict[str, Any]]:
    """Return a Kubernetes Secret for each service's credentials below ``root``, and one for public files.

    Raises TopologyError: there are none.
    """
    folders = {path.parent.name: path for path in sorted(root.glob("*/credentials"))}
    if not folders:
        raise TopologyError(f"{root} holds no credentials: make them with python -m deploy.init first")
    return [
        {
            "apiVersion": "v1",
            "kind": "Secret",
            "metadata": {"name": name},
            "data": {
                file.name: b64encode(file.read_bytes()).decode()
                for file in sorted(folder.iterdir())
                if not file.name.endswith(".old")
            },
        }
        for name, folder in {**folders, PUBLIC: root / PUBLIC}.items()
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print a directory's credentials as Kubernetes Secrets; return 0, or 2 for bad input."""
    parser = argparse.ArgumentParser(
        prog="python -m deploy.kubernetes", description="Print credentials as Secrets."
    )
    parser.add_argument("--directory", type=Path, required=True, help="where deploy.init has written them")
    options = parser.parse_args(arguments)
    return exit_status(lambda: print(yaml.safe_dump_all(secrets_of(options.directory)), end=""))


def values_text(tree: Tree, header: str) -> str:
    """Return the Helm chart's values for a Compose file, with this process's environment variables."""
    comment = "".join(f"# {line}\n" for line in header.splitlines())
    return comment + yaml.safe_dump(values_of(tree, os.environ), sort_keys=False, width=110)


if __name__ == "__main__":
    raise SystemExit(main())
