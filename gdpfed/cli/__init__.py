"""The command ``gdpfed``, one file a command."""

from collections.abc import Sequence

from gdpfed.cli.interrupt import quiet_interrupt


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return the exit status, as :func:`gdpfed.cli.app.main` says."""
    with quiet_interrupt():
        from gdpfed.cli.app import main as run
    return run(arguments)


__all__ = ["main"]
