"""In which rounds each client took part, where what a round costs is the client's own."""

from collections.abc import Mapping, Sequence

from gdpfed.errors import PrivacyError
from gdpfed.privacy.spending import Spending
from gdpfed.privacy.validation import require_count


class RoundsTaken:
    """The rounds of every client that has taken part, from 0, in their order."""

    def __init__(self) -> None:
        self._rounds: dict[int, list[int]] = {}

    def add(self, round_index: int, clients: Sequence[int]) -> None:
        """Charge a round to these clients."""
        for client in clients:
            self._rounds.setdefault(client, []).append(round_index)

    def largest_epsilon(self, spending: Spending, delta: float) -> float:
        """Epsilon of the client that has spent most."""
        return spending.largest_epsilon(self._rounds, delta)

    def to_dict(self) -> dict[str, list[int]]:
        """Return the JSON form."""
        return {str(client): self._rounds[client] for client in sorted(self._rounds)}

    @classmethod
    def from_dict(cls, saved: object, counts: Mapping[int, int], charged_rounds: int) -> "RoundsTaken":
        """Return what `to_dict` wrote; `counts` says in how many rounds each client took part.

        Raises PrivacyError for rounds that are not so many, or that were never charged.
        """
        taken = cls()
        if not isinstance(saved, Mapping) or set(saved) != {str(client) for client in counts}:
            raise PrivacyError(
                "the ledger's rounds taken are not those of the clients that it counts; resume from an "
                "intact ledger"
            )
        for client, count in counts.items():
            rounds = saved[str(client)]
            if not isinstance(rounds, list) or len(rounds) != count or sorted(set(rounds)) != rounds:
                raise PrivacyError(
                    f"the ledger's rounds of client {client} are not {count} in order; resume from an intact "
                    "ledger"
                )
            for index in rounds:
                if require_count("a round of the ledger", index, at_least=0) >= charged_rounds:
                    raise PrivacyError(
                        f"the ledger has client {client} in round {index}, of {charged_rounds} that are "
                        "charged; resume from an intact ledger"
                    )
            taken._rounds[client] = rounds
        return taken
