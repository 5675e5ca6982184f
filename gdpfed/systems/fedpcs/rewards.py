"""The file of the clients' earnings under a posted reward; no money moves."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from gdpfed.files import save_whole
from gdpfed.privacy.ledgers.participations import TURNS
from gdpfed.rounds.observers import Observer, RoundEnded
from gdpfed.runs.file_formats import LEDGER_FILE, REWARDS_FILE, versioned
from gdpfed.systems.fedpcs.fedpcs import FedPCS


class RewardsFile(Observer):
    """Writes r_i = sum R_t rho_i^t over the rounds that each client was charged, after every round.

    They come from the ledger's file, which says who took part: it is its owner's to read only.
    """

    def __init__(self, directory: Path, method: FedPCS) -> None:
        self._path, self._method = directory, method

    def round_ended(self, ended: RoundEnded) -> None:
        del ended
        ledger = json.loads((self._path / LEDGER_FILE).read_text(encoding="utf-8"))
        taken = {int(client): rounds for client, rounds in ledger[TURNS].items()}
        earned = {str(client): value for client, value in rewards_of(self._method, taken).items()}
        values = versioned({"rewards": self._method.equilibrium.rewards.tolist(), "clients": earned})
        save_whole(self._path / REWARDS_FILE, json.dumps(values, indent=2).encode())


def rewards_of(method: FedPCS, taken: Mapping[int, Sequence[int]]) -> dict[int, float]:
    """r_i = sum R_t rho_i^t over the rounds that each client really took part in; bookkeeping."""
    rewards, budgets = method.equilibrium.rewards, method.played_budgets
    return {
        client: float(sum(rewards[t] * budgets[t, client] for t in rounds))
        for client, rounds in taken.items()
    }
