"""Federated learning under client-level differential privacy with a budget of each client's own."""

from typing import TYPE_CHECKING

__version__: str

if not TYPE_CHECKING:

    def __getattr__(name: str) -> str:
        """Return the version; only pyproject.toml states it, and few processes ask for it."""
        if name != "__version__":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        import tomllib
        from importlib.metadata import PackageNotFoundError, version
        from pathlib import Path

        try:
            return version("gdpfed")
        except PackageNotFoundError:
            # A bundle that Flower has unpacked is not installed, and has the file itself.
            text = (Path(__file__).resolve().parents[1] / "pyproject.toml").read_text(encoding="utf-8")
            return tomllib.loads(text)["project"]["version"]
