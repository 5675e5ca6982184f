"""Client signing keys from fixed seeds, their files, and a Flower grid of nodes with these keys."""

from collections.abc import Mapping
from hashlib import sha256
from pathlib import Path
from typing import Any

from gdpfed.identities import write_new
from secagg import Identity, Roster
from testing.local_grid import FIRST_NODE_ID, LocalGrid

CONSORTIUM = Identity(sha256(b"consortium").digest())
ROSTER, CONSORTIUM_KEY = "roster.json", "consortium.identity"


def identity_of(client_id: int, name: str = "identity") -> Identity:
    """Return a client's identity (signing key), derived from its number and a name."""
    return Identity(sha256(f"{name} {client_id}".encode()).digest())


def keys_of(num_clients: int) -> dict[int, bytes]:
    """Return the public keys of clients 0 to num_clients - 1, whose signing keys come from fixed seeds."""
    return {client: identity_of(client).public_bytes() for client in range(num_clients)}


def write_files(
    folder: Path, keys: Mapping[int, bytes], consortium: Identity = CONSORTIUM, number: int = 0
) -> Path:
    """Write the signed list of these keys (roster) and the consortium's key, replacing earlier files."""
    folder.mkdir(exist_ok=True)
    (folder / ROSTER).write_bytes(Roster(keys, number=number).signed_by(consortium))
    (folder / CONSORTIUM_KEY).write_text(consortium.public_bytes().hex())
    return folder


def node_settings(folder: Path, client_id: int, identity: Identity | None = None) -> dict[str, Any]:
    """Write a client's signing key into a folder with a list of keys (roster); return the node's settings."""
    key = folder / f"{client_id}.key"
    key.unlink(missing_ok=True)
    write_new(key, (identity or identity_of(client_id)).to_pem(), 0o600)
    return {
        "identity-file": str(key),
        "roster-file": str(folder / ROSTER),
        "consortium-key": str(folder / CONSORTIUM_KEY),
    }


def server_words(folder: Path) -> list[str]:
    """Return the settings (key=value) of a run that uses the list of keys (roster) in a folder."""
    return [f"secagg.roster_file={folder / ROSTER}", f"secagg.consortium_key={folder / CONSORTIUM_KEY}"]


def grid_of_identities(folder: Path, num_clients: int, **options: Any) -> LocalGrid:
    """Return a grid on which every node has its signing key and the list of keys from a folder."""
    grid = LocalGrid(num_clients, **options)
    for client in range(num_clients):
        grid.contexts[FIRST_NODE_ID + client].node_config |= node_settings(folder, client)
    return grid
