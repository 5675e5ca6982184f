"""The state that a client keeps between two messages of a secure sum, and its form in bytes."""

from collections.abc import Collection
from dataclasses import dataclass, field

from secagg.arithmetic.encoding import Encoding
from secagg.crypto.keys import PUBLIC_KEYS_BYTES
from secagg.crypto.prg import KEY_BYTES
from secagg.protocol.graph import Graph, graph_of
from secagg.protocol.parameters import SumParameters
from secagg.protocol.sum_messages import held_bytes
from secagg.protocol.transitions import ClientStage
from secagg.protocol.wire import Reader, Writer, read_ids, read_table, write_ids, write_table
from secagg.sum_errors import DecodeError, LocalProtocolError

_MESSAGE_TYPE = 32
_STAGES = list(ClientStage)
_SHORT_FIELDS = (
    "mask_private_key",
    "seal_private_key",
    "self_seed",
    "base_noise_seed",
    "noise_seed",
    "sid",
)


@dataclass(repr=False)
class ClientState:
    """What a client's session knows so far; an empty value is not known yet, or was erased.

    Attributes:
        client_id: this client's id, the same in all sums.
        member: its number in this sum.
        stage: the last completed step.
        parameters: the sum's parameters, from the first stage on.
        mask_private_key, seal_private_key, self_seed: this client's own secrets.
        base_noise_seed: the seed of the noise that always stays in the sum; never shared.
        noise_seed: the seed of the first removable part of the noise; the other seeds follow from it.
        seal_secrets: neighbour -> what the two keys for sealing agree on; not saved with the state, which has
            the key to compute it again.
        members: member -> `PublicKeys.to_bytes`, of all members that advertised keys (U1).
        sid: the session id, 32 bytes.
        contributors: the members that shared their secrets (U2), ascending.
        held_shares: neighbour in U2 -> shares of its mask seed, its masking key and its noise seeds.
        complaints: neighbours in U2 whose shares are invalid.
        pair_keys: neighbour in U2 -> the key of the mask with it, after this client has masked.
        survivors: the list of survivors (U3) that this client got, and signed, in the check stage.
        correctors: the members without an update, ascending.
        corrects: whether this client is one of the correctors.
    """

    client_id: int
    member: int = 0
    stage: ClientStage = ClientStage.NEW
    parameters: SumParameters | None = None
    mask_private_key: bytes = b""
    seal_private_key: bytes = b""
    self_seed: bytes = b""
    base_noise_seed: bytes = b""
    noise_seed: bytes = b""
    seal_secrets: dict[int, bytes] = field(default_factory=dict)
    members: dict[int, bytes] = field(default_factory=dict)
    sid: bytes = b""
    contributors: tuple[int, ...] = ()
    held_shares: dict[int, bytes] = field(default_factory=dict)
    complaints: tuple[int, ...] = ()
    pair_keys: dict[int, bytes] = field(default_factory=dict)
    survivors: tuple[int, ...] = ()
    correctors: tuple[int, ...] = ()
    corrects: bool = False

    @property
    def sum_parameters(self) -> SumParameters:
        """The sum's public parameters; raises LocalProtocolError before they are known."""
        if self.parameters is None:
            raise LocalProtocolError("the parameters are unknown: call advertise first")
        return self.parameters

    def encoding(self) -> Encoding:
        """Return the integer grid of the sum; raise LocalProtocolError before contributors are known."""
        if not self.contributors:
            raise LocalProtocolError("how many contribute is unknown: call accept_shares first")
        return self.sum_parameters.encoding(self.num_updates(self.contributors))

    def num_updates(self, members: Collection[int]) -> int:
        """Return how many of the given members send an update."""
        return len(set(members).difference(self.correctors))

    def graph(self) -> Graph:
        """Return the graph that says which members are neighbours."""
        return graph_of(self.sid, frozenset(self.members), self.sum_parameters.num_neighbours)

    def partners(self) -> frozenset[int]:
        """Return the members that share a mask with this client: its neighbours among the contributors."""
        return self.graph().neighbours(self.member) & frozenset(self.contributors)

    def erase_seals(self) -> None:
        """Erase the secrets that are of no use after the other members' shares are opened."""
        self.seal_private_key, self.seal_secrets = b"", {}

    def erase_own_secrets(self) -> None:
        """Erase the secrets that are of no use after this client's vector is masked."""
        self.erase_seals()
        self.mask_private_key = self.self_seed = b""
        self.base_noise_seed = self.noise_seed = b""
        self.members = {}

    def erase(self) -> None:
        """Erase every secret, this client's own and the shares that it holds for others."""
        self.erase_own_secrets()
        self.held_shares, self.pair_keys = {}, {}

    def to_bytes(self) -> bytes:
        parameters = self.parameters.to_bytes() if self.parameters else b""
        writer = Writer(_MESSAGE_TYPE).client_id(self.client_id).client_id(self.member)
        writer.number("B", _STAGES.index(self.stage)).number("B", self.corrects)
        writer.count(len(parameters)).fixed(parameters, len(parameters))
        for name in _SHORT_FIELDS:
            writer.short(getattr(self, name))
        write_table(writer, self.members, PUBLIC_KEYS_BYTES)
        write_table(writer, self.held_shares, self._held_bytes)
        write_table(writer, self.pair_keys, self._pair_key_bytes)
        for ids in (self.contributors, self.complaints, self.survivors, self.correctors):
            write_ids(writer, ids)
        return writer.frame()

    @property
    def _held_bytes(self) -> int:
        return held_bytes(self.parameters.noise_levels if self.parameters else 0)

    @property
    def _pair_key_bytes(self) -> int:
        return KEY_BYTES[self.parameters.suite] if self.parameters else 0

    @classmethod
    def from_bytes(cls, data: bytes) -> "ClientState":
        """Read a state that `to_bytes` wrote; raise DecodeError for anything else."""
        reader = Reader(data, _MESSAGE_TYPE)
        client_id, member = reader.client_id(), reader.client_id()
        stage, corrects = reader.integer("B"), reader.integer("B")
        if stage >= len(_STAGES) or corrects > 1:
            raise DecodeError(f"stage number {stage}, or {corrects} in place of an update, is unknown")
        parameters = reader.fixed(reader.integer("I"))
        state = cls(client_id, member, _STAGES[stage], corrects=bool(corrects))
        state.parameters = SumParameters.from_bytes(parameters) if parameters else None
        for name in _SHORT_FIELDS:
            setattr(state, name, reader.short())
        state.members = read_table(reader, PUBLIC_KEYS_BYTES)
        state.held_shares = read_table(reader, state._held_bytes)
        state.pair_keys = read_table(reader, state._pair_key_bytes)
        state.contributors, state.complaints = read_ids(reader), read_ids(reader)
        state.survivors, state.correctors = read_ids(reader), read_ids(reader)
        return reader.finish(state)
