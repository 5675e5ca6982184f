"""The command ``gdpfed``, one file a command."""

from gdpfed.cli.app import main

__all__ = ["main"]
