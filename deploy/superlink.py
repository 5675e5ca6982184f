"""``python -m deploy.superlink``: run Flower's SuperLink; it loses no message by slow writes or lost replies.

Its state is one SQLite file, and each question of a node or an app writes into it, one at a time. Flower
gives up after five seconds and answers 500, by which a run ends, or a node's answer is lost. Where many nodes
share a busy host, or another program writes, a turn may take longer. Here it may take as long as whoever
asks waits for an answer.

The tables of that file are made by scripts in Flower's own folder. Flower hands over its path in a list that
is split at spaces and commas: below a folder named "my study" no script is found, and the SuperLink ends.
Here the path stays whole. How no lost answer costs a message: :mod:`deploy.delivery`.
"""

import sys
from collections.abc import Sequence
from typing import Any

from flwr.supercore import sql_mixin
from flwr.supercore.state.alembic import utils
from flwr.supercore.version import package_version
from flwr.superlink.cli import flower_superlink

from deploy.delivery import WRAPPED
from deploy.options import exit_status
from gdpfed.errors import LaunchError

# A SuperNode gives up a question after 30 seconds.
WAIT_MILLISECONDS = 25_000
_SETTINGS, _WAIT = "SQLITE_PRAGMAS", "busy_timeout"
_TABLES = "build_alembic_config"


def wait_for_database() -> None:
    """Make Flower wait longer for access to its database.

    Raises LaunchError: this Flower has no such setting.
    """
    settings = dict(getattr(sql_mixin, _SETTINGS, ()))
    if _WAIT not in settings:
        raise _another_flower(f"{_SETTINGS} with {_WAIT}", "sql_mixin.py")
    setattr(sql_mixin, _SETTINGS, tuple((settings | {_WAIT: str(WAIT_MILLISECONDS)}).items()))


def find_tables_under_any_path() -> None:
    """Make Flower find its database migration scripts even if their path contains a space or comma.

    Raises LaunchError: this Flower makes its tables otherwise.
    """
    made = getattr(utils, _TABLES, None)
    if made is None:
        raise _another_flower(_TABLES, "state/alembic/utils.py")

    def with_whole_paths(engine: Any) -> Any:
        config = made(engine)
        config.set_main_option("path_separator", "newline")
        return config

    setattr(utils, _TABLES, with_whole_paths)


def lose_no_message() -> None:
    """Wrap Flower's methods for messages and replies, so that no message is lost when an answer is lost.

    Raises LaunchError: this Flower has none of such a name.
    """
    missing = [name for owner, name, _ in WRAPPED if not hasattr(owner, name)]
    if missing:
        raise _another_flower(", ".join(missing), "sql_linkstate.py and runtime_handlers.py")
    for owner, name, wrap in WRAPPED:
        setattr(owner, name, wrap(getattr(owner, name)))


def _another_flower(lacking: str, file: str) -> LaunchError:
    return LaunchError(
        f"the SuperLink of Flower {package_version} has no {lacking}: install the Flower of uv.lock, or read "
        f"{file} of this one and change deploy/superlink.py"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the SuperLink to its end; return the exit status, 2 if it is not started."""
    words = sys.argv[1:] if arguments is None else arguments
    return exit_status(lambda: start(words))


def start(flower: Sequence[str]) -> None:
    """Run Flower's SuperLink; all words of the command line are Flower's own options."""
    wait_for_database()
    find_tables_under_any_path()
    lose_no_message()
    sys.argv = ["flower-superlink", *flower]
    flower_superlink()


if __name__ == "__main__":
    raise SystemExit(main())
