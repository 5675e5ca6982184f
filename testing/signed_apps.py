"""Makes small app bundles for tests, and the file by which Flower trusts a consortium's key."""

import io
import zipfile

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

PROJECT = """\
[project]
name = "gdpfed"
version = "{version}"
[tool.flwr.app]
publisher = "gdpfed"
[tool.flwr.app.components]
serverapp = "server_app.app:app"
clientapp = "client_app.app:app"
[tool.flwr.app.config]
overrides = ""
"""


def bundle_of(version: str) -> bytes:
    """Return a bundle with a single file, whose app has this version."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w") as bundle:
        bundle.writestr(zipfile.ZipInfo("pyproject.toml"), PROJECT.format(version=version))
    return file.getvalue()


def trusted(key: bytes) -> dict[str, str]:
    """Return the content of a ``--trusted-entities`` file with this key alone."""
    public = Ed25519PublicKey.from_public_bytes(key).public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return {key.hex(): public.decode()}
