"""Message types and record names, shared by server and clients.

Everything is either public (parameters, keys, the model), sealed for another client, or masked. Nothing that
a client computes from its data leaves it in clear: no loss, no data-dependent field. The number of its
records does only in a run that protects records, in which it is public; and steps of DP-SGD, which are
private by themselves, may.
"""

import re
from dataclasses import dataclass

from gdpfed.errors import printable, words_of

JOIN, ASK, CARRY, OFFER, BEGIN, END = "join", "ask", "carry", "offer", "begin", "end"
"""The queries."""

LARGE_BYTES = 1 << 20
"""Vectors above this travel as arrays, which Flower sends in chunks, and not as one value.

Flower gives up a value that takes longer than three minutes, and on a poor line 20 MB do. Models above it are
also carried once to every node and back before anything is charged (``carry``).
"""

ADVERTISE, SHARE, MASK, CHECK, UNMASK = "advertise", "share", "mask", "check", "unmask"
PLAIN = "plain"
STAGES = (MASK, CHECK, UNMASK, ADVERTISE, SHARE, PLAIN)
"""The stages of sums, in the order in which a client answers those of one message.

Each is a record of the message, with its bytes and the run and round that it is of: one message can hold a
late stage of one round's sum and an early one of the next round's. The first gives the message its type. A
client answers each with a record of the same name.
"""

DATA, RUN, ROUND, REFUSAL = "data", "run", "round", "refusal"
"""The fields of a stage's record; an answer has the first or the last.

An answer above :data:`LARGE_BYTES` is an array record whose one array, ``data``, holds the bytes.
"""

JOINED, JOINED_BYTES = "joined", 1 << 16
"""The record of a message with stages that holds all of its records of at most `JOINED_BYTES`.

Flower sends each record, array and piece of an array by a request of its own, three times on the way to a
node's app. Its fields are named by record and field, as ``order/seed``; an array of one axis also has its
type in the name, as ``theta/theta/<f4``.
"""

MODE, CHALLENGE, ROSTER_DIGEST = "mode", "challenge", "roster"
IDENTITY, SIGNATURE = "identity", "signature"
CLIENTS, INPUT_SHAPE, INPUT_DTYPE = "clients", "input-shape", "input-dtype"
LABEL_DTYPE, LABEL_SHAPE, COLUMNS = "label-dtype", "label-shape", "columns"
UNIT, RECORDS, BY_PARTY = "unit", "records", "counts-by-party"
WEIGHTS, SOURCE, MODEL, LOSS = "weights-sha256", "source", "model", "loss"
"""Of the query ``join``: the fields of the question, those by which a node proves its key, and how many
records it has, which it says where the unit is one, whether its counts are shown by themselves, the hash of
the file that the model is built on, the data set that a node without data of its own has a part of, and the
names of the model and of the loss."""

WIRE, WIRE_VERSION, VERSIONS = "wire", 3, "versions"
"""Of question and answer of ``join``: the version of these messages, and those of the packages in words.

The first is raised with every change that an older side would misunderstand.
"""

CLIENT_RECORD = "client"
ORDER_RECORD = "order"
THETA_RECORD = "theta"
CORRECTION_RECORD = "correction"
TURNS, CONTEXT = "turns", "context"
"""Of stage mask: the earlier rounds whose noise a client takes back, and what the others train by."""
ROSTER_RECORD = "roster"
REFUSAL_RECORD = "refusal"
HISTORY_RECORD = "history"
TOLD_RUNS, TOLD_ROUNDS, TOLD_SECRETS, SECRET = "runs", "rounds", "secrets", "secret"
MOST_TOLD_RUNS = 100
"""What a client is told with the terms: its newest runs on this server, in how many rounds of each the server
has received an update of it, and the secret that it was told when each began; then the secret of this run."""
TERMS_RECORD = "terms"


@dataclass(frozen=True)
class RoundOfRun:
    """The run and the round, from 0, that a message is about."""

    run: str
    index: int


ROUND_OF_LABEL = "round "
AGREED_OF_LABEL = "agreed "
"""Begins the part of a sum's label that names the round. Members sign it: run/process/round i/name."""
MOST_CHARACTERS = 300
MOST_NUMBER = 2.0**64


def one_line(said: object) -> str:
    """Turn text that a server or a node sent into one printable line of at most 300 characters.

    Every text from a node goes through this before it enters a log, an error or a file. Of an error it takes
    what `words_of` returns.
    """
    if isinstance(said, BaseException):
        said = words_of(said)
    if isinstance(said, int | float) and not abs(said) > MOST_NUMBER:
        said = repr(said)
    text = said if isinstance(said, str) else f"a {type(said).__name__} where a text should be"
    line = " ".join(printable(text[: 4 * MOST_CHARACTERS]).split())
    return line if len(line) <= MOST_CHARACTERS else f"{line[: MOST_CHARACTERS - 3]}..."


COLOURS = re.compile(r"\x1b\[[0-9;]*m")
CAUSE = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exception): .+", re.MULTILINE)


def cause_in_line(reason: object) -> str:
    """Return why a node's app failed, in one line: from a traceback of Flower or Ray, the first error."""
    text = COLOURS.sub("", reason) if isinstance(reason, str) else reason
    first = CAUSE.search(text) if isinstance(text, str) and "\n" in text else None
    return one_line(first.group() if first else text)
