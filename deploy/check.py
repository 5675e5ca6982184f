"""``python -m deploy.check [FILE ...]``: what must hold for a Compose file of this project.

Without an engine: the schema of the Compose Specification, and this project's own promises. Where ``docker``
is installed, ``docker compose config`` has a word as well.
"""

import argparse
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml

from deploy import init
from deploy.checks.budgets import budget_problems
from deploy.checks.commands import command_problems
from deploy.checks.confinement import confinement_problems
from deploy.checks.interpolation import at_defaults
from deploy.checks.schema import schema_problems
from deploy.checks.secrets import file_problems, secret_problems
from deploy.credentials import PUBLIC
from deploy.topology import SERVER, SUPERLINK_CA_FILE

DEFAULT_FILE = Path("docker-compose.yml")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print every problem; returns 0 if there is none, else 1."""
    parser = argparse.ArgumentParser(prog="python -m deploy.check", description=__doc__)
    parser.add_argument("files", nargs="*", type=Path, default=[DEFAULT_FILE], metavar="FILE")
    failed = False
    for file in parser.parse_args(arguments).files:
        found = problems_of(file)
        failed = failed or bool(found)
        for problem in found:
            print(f"{file}: {problem}", file=sys.stderr)
        if not found:
            print(f"{file} is in order")
    return int(failed)


def problems_of(file: Path) -> list[str]:
    """Everything that is wrong with a Compose file, in words."""
    try:
        tree = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        return [f"cannot be read: {' '.join(str(error).split())}"]
    return tree_problems(tree) or engine_problems(file)


def tree_problems(tree: Any) -> list[str]:
    """What is wrong with the contents of a Compose file."""
    found = list(schema_problems(tree))
    if found:
        return found
    tree = at_defaults(tree)
    found = [*command_problems(tree), *confinement_problems(tree), *budget_problems(tree)]
    if found:
        return found
    with TemporaryDirectory() as directory:
        root = Path(directory)
        make_credentials(tree, root)
        return [*file_problems(tree, root), *secret_problems(tree, root)]


def make_credentials(tree: dict[str, Any], root: Path) -> None:
    """Do what the file's init job does, into ``root`` and for oneself."""
    options = init.parser().parse_args(tree["services"]["init"]["entrypoint"][3:])
    options.directory, options.owner = root, None
    if options.party and SERVER not in options.party:
        (root / PUBLIC).mkdir()
        (root / PUBLIC / SUPERLINK_CA_FILE).write_text("the server's operator sends this\n")
    init.provide(options)


def engine_problems(file: Path) -> list[str]:
    """What ``docker compose config`` says, where there is a ``docker`` with Compose."""
    if shutil.which("docker") is None or _docker_compose("version").returncode != 0:
        return []
    done = _docker_compose("--file", str(file), "config", "--quiet")
    return [] if done.returncode == 0 else [done.stderr.strip()]


def _docker_compose(*words: str) -> subprocess.CompletedProcess[str]:
    command = ["docker", "compose", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - the engine's own


if __name__ == "__main__":
    raise SystemExit(main())
