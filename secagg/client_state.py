"""What a client keeps between two messages, and its form at rest."""

from dataclasses import dataclass, field

from secagg.errors import DecodeError, LocalProtocolError
from secagg.messages import PUBLIC_KEYS_BYTES, SHARE_BYTES
from secagg.parameters import RoundParameters
from secagg.stages import ClientStage
from secagg.wire import Reader, Writer, read_table, write_table

_MESSAGE_TYPE = 32
_STAGES = list(ClientStage)


@dataclass(repr=False)
class ClientState:
    """The session's memory. An empty value is one not yet known, or one erased.

    Attributes:
        client_id: this client.
        stage: what was done last.
        parameters: the sum's, from the first stage on.
        mask_private_key, seal_private_key, self_seed: this client's own secrets.
        members: id -> `PublicKeys.to_bytes` of all who advertised (U1).
        sid: the session id, 32 bytes.
        held_shares: id -> share of its seed, then share of its masking key (others of U2).
    """

    client_id: int
    stage: ClientStage = ClientStage.NEW
    parameters: RoundParameters | None = None
    mask_private_key: bytes = b""
    seal_private_key: bytes = b""
    self_seed: bytes = b""
    members: dict[int, bytes] = field(default_factory=dict)
    sid: bytes = b""
    held_shares: dict[int, bytes] = field(default_factory=dict)

    @property
    def sum_parameters(self) -> RoundParameters:
        """The sum's public numbers; LocalProtocolError before they are known."""
        if self.parameters is None:
            raise LocalProtocolError("the parameters are unknown: call advertise first")
        return self.parameters

    def erase_own_secrets(self) -> None:
        """Forget what only this client's masked vector needs."""
        self.mask_private_key = self.seal_private_key = self.self_seed = b""
        self.members = {}

    def erase(self) -> None:
        """Forget every secret, its own and those held for others."""
        self.erase_own_secrets()
        self.held_shares = {}

    def to_bytes(self) -> bytes:
        parameters = self.parameters.to_bytes() if self.parameters else b""
        writer = Writer(_MESSAGE_TYPE).client_id(self.client_id)
        writer.number("B", _STAGES.index(self.stage))
        writer.count(len(parameters)).fixed(parameters, len(parameters))
        for secret in (self.mask_private_key, self.seal_private_key, self.self_seed, self.sid):
            writer.short(secret)
        write_table(writer, self.members, PUBLIC_KEYS_BYTES)
        return write_table(writer, self.held_shares, 2 * SHARE_BYTES).frame()

    @classmethod
    def from_bytes(cls, data: bytes) -> "ClientState":
        """Read `to_bytes`; raises only DecodeError."""
        reader = Reader(data, _MESSAGE_TYPE)
        client_id = reader.client_id()
        stage = reader.integer("B")
        if stage >= len(_STAGES):
            raise DecodeError(f"stage number {stage} is unknown")
        parameters = reader.fixed(reader.integer("I"))
        state = cls(client_id, _STAGES[stage])
        state.parameters = RoundParameters.from_bytes(parameters) if parameters else None
        state.mask_private_key, state.seal_private_key = reader.short(), reader.short()
        state.self_seed, state.sid = reader.short(), reader.short()
        state.members = read_table(reader, PUBLIC_KEYS_BYTES)
        state.held_shares = read_table(reader, 2 * SHARE_BYTES)
        return reader.finish(state)
