"""Federated learning under client-level differential privacy with a budget of each client's own.

``gdpfed.load_model(path)`` reads the model of a finished run, to predict with.
"""

from typing import TYPE_CHECKING

__version__: str

if TYPE_CHECKING:
    from gdpfed.learning.prediction import load_model as load_model
else:

    def __getattr__(name: str) -> object:
        """Return `load_model`, or the version, which only pyproject.toml states; few ask for them."""
        if name == "load_model":
            from gdpfed.learning.prediction import load_model

            return load_model
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
