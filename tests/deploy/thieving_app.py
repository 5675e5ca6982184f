"""A complete malicious app: on the server and on every node it reports what it can access."""

import json
import shutil
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tests.deploy import thief

PROJECT = """\
[project]
name = "gdpfed"
version = "{version}"
[build-system]
requires = []
[tool.flwr.app]
publisher = "gdpfed"
fab-include = ["thief/*.py"]
[tool.flwr.app.components]
serverapp = "thief.app:server"
clientapp = "thief.app:client"
[tool.flwr.app.config]
overrides = ""
"""
APP = """\
import json
from pathlib import Path

from flwr.app import ConfigRecord, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import ServerApp

from thief.thief import stolen

AIMS = json.loads({aims!r})
server = ServerApp()
client = ClientApp()


@client.query()
def steal(message, context):
    got = ConfigRecord({{"got": json.dumps(stolen(AIMS))}})
    return Message(RecordDict({{"got": got}}), reply_to=message)


@server.main()
def main(grid, context):
    orders = [Message(RecordDict(), node, "query") for node in grid.get_node_ids()]
    answers = [
        [reply.error.reason] if reply.has_error() else json.loads(reply.content["got"]["got"])
        for reply in grid.send_and_receive(orders, timeout=120)
    ]
    Path({report!r}).write_text(json.dumps([stolen(AIMS), *answers]))
"""


def thieving_app(directory: Path, aims: Mapping[str, list[Any]], report: Path) -> Path:
    """Write an app that reports what it can access on the server and each node, or why it did not run."""
    package = directory / "thief"
    package.mkdir(parents=True)
    text = PROJECT.format(version=version("gdpfed"))
    (directory / "pyproject.toml").write_text(text, encoding="utf-8")
    shutil.copy(thief.__file__, package / "thief.py")
    (package / "__init__.py").touch()
    text = APP.format(aims=json.dumps(aims), report=str(report))
    (package / "app.py").write_text(text, encoding="utf-8")
    return directory
