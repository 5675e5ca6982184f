"""Measures secure aggregation beside the raw cipher and Flower's SecAgg+, and for growing cohorts.

The table's rows are measured one after the other in this one call. The growth with the cohort is that of
whole rounds in which a tenth of the clients drops out; its picture goes to docs/secagg_growth.png.

    python -m benchmarks.secagg             about ten minutes
    python -m benchmarks.secagg --quick     smaller vectors, and cohorts of at most n = 120
    python -m benchmarks.secagg --noise     computes surplus noise and undetected changes, and times nothing
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from cryptography.hazmat.primitives.ciphers import CipherContext

from benchmarks.harness import CONSOLE, PROJECT, draw_growth, fastest, publish, read_options, three
from benchmarks.secagg import flower
from benchmarks.secagg.noise import excess_table, push_table
from benchmarks.secagg.ours import parameters_for, peak_vectors, run_round, sparse_parameters
from gdpfed.report.console import Table
from secagg import COMPLETE_BELOW, Stage
from secagg.arithmetic.discrete_gaussian import sample
from secagg.arithmetic.noise_levels import INTEGER_NOISE_STDDEVS as NOISE_NAMES
from secagg.arithmetic.packing import add_packed, pack
from secagg.crypto.prg import NUM_THREADS, add_masks, cipher_stream, mask_stream
from secagg.crypto.shamir import recover, split

SUITE = "aes128ctr"
MASKS = 20
GROWTH_DIMENSION = 100_000
CHUNK_BYTES = 256 * 1024
HEADINGS = ("work", "ours", "compared with", "ratio", "aim")
Row = tuple[str, str, str, str, str]


def compared(work: str, ours: str, other: str, ratio: float, aim: str = "") -> Row:
    """Make and print a table row that compares gdpfed's time or rate with another program's; return it."""
    row = (work, ours, other, f"{ratio:.2f}" if ratio < 10 else f"{ratio:,.0f}", aim)
    CONSOLE.print(" | ".join(row), soft_wrap=True)
    return row


def raw_keystream(stream: CipherContext, num_bytes: int) -> None:
    """Encrypt `num_bytes` zeros in chunks into a small buffer, to time the cipher without memory traffic."""
    zeros, buffer = bytes(CHUNK_BYTES), bytearray(CHUNK_BYTES)
    for _ in range(num_bytes // CHUNK_BYTES):
        stream.update_into(zeros, buffer)


def mask_rates(dimension: int, threads: int, repeats: int) -> dict[str, float]:
    """Measure bytes per second of making and adding masks, and of the cipher alone."""
    vector = np.zeros(dimension, dtype=np.uint32)
    masks = [(bytes([number]) * 16, 1) for number in range(MASKS)]
    share = 4 * dimension * MASKS // threads // CHUNK_BYTES * CHUNK_BYTES
    streams = {
        "ctr": lambda: cipher_stream(SUITE, bytes(16)),
        "gcm": lambda: mask_stream(SUITE, bytes(16), 0),
    }

    def alone(mode: str) -> None:
        made = [streams[mode]() for _ in range(threads)]
        list(pool.map(raw_keystream, made, [share] * threads))

    with ThreadPoolExecutor(threads) as pool:
        best = fastest(
            repeats,
            ours=lambda: add_masks(vector, masks, SUITE, threads),
            ctr=lambda: alone("ctr"),
            gcm=lambda: alone("gcm"),
        )
    sizes = {"ours": 4 * dimension * MASKS, "ctr": share * threads, "gcm": share * threads}
    return {name: size / best[name] for name, size in sizes.items()}


def mask_rows(dimension: int, repeats: int) -> list[Row]:
    """Make table rows on the speed of masking, with one thread and with two."""
    rows, d = [], _d(dimension)
    for threads, aim in ((1, "0.8"), (2, "0.75" if dimension > 5e6 else "")):
        rates = mask_rates(dimension, threads, repeats)
        name = f"mask and add, {d}, {threads} thread{'s'[: threads - 1]}"
        for mode, wanted in (("ctr", aim), ("gcm", "")):
            other = f"AES-{mode.upper()} alone, {_rate(rates[mode])}"
            rows.append(compared(name, _rate(rates["ours"]), other, rates["ours"] / rates[mode], wanted))
        if threads == 1:
            ours, theirs = 4 * dimension / rates["ours"], flower.mask_seconds(dimension)
            rows.append(against_flower(f"one mask, {d}", ours, theirs, "4"))
    return rows


def against_flower(work: str, ours: float, theirs: float, aim: str) -> Row:
    """Make a table row with gdpfed's seconds and Flower's for the same part of secure aggregation."""
    return compared(work, _time(ours), f"Flower {_time(theirs)}", theirs / ours, aim)


def shamir_rows() -> list[Row]:
    """Make table rows on splitting a secret into Shamir shares, and recovering it."""
    secret = bytes(range(32))
    shares = split(secret, 120, 80, os.urandom)
    chosen = {x: shares[x - 1] for x in range(1, 81)}
    ours = fastest(50, split=lambda: split(secret, 120, 80, os.urandom), recover=lambda: recover(chosen, 32))
    splitting, recovering = flower.shamir_seconds(120, 80, secret)
    return [
        against_flower("Shamir split, 120 holders, t = 80", ours["split"], splitting, "1,000"),
        against_flower("Shamir recover (weights cached)", ours["recover"], recovering, "1,000"),
    ]


def round_rows(num_clients: int, dimension: int) -> list[Row]:
    """Make table rows on the parts of a round in which a tenth of the clients drops out.

    Both clients quantise an update and bring the masked vector into bytes; ours draws noise besides. Both
    servers begin with these bytes and end with floats.
    """
    parameters = parameters_for(num_clients, dimension)
    dropped, threshold = num_clients // 10, parameters.threshold
    cost = run_round(parameters)
    sharing, masking = flower.client_seconds(num_clients, threshold, dimension)
    server = flower.server_seconds(num_clients, threshold, dimension, dropped)
    n, d = f"n = {num_clients}", _d(dimension)
    ours = cost.client_seconds[Stage.SHARE], cost.client_seconds[Stage.MASK], cost.server_seconds
    return [
        against_flower(f"client, key sharing, {n}", ours[0], sharing, "200"),
        against_flower(f"client, update to masked vector, {n}, {d}", ours[1], masking, "5"),
        against_flower(f"server, vectors to sum, {dropped} of {num_clients} lost", ours[2], server, "100"),
    ]


def steps_table(num_clients: int, dimension: int, repeats: int) -> Table:
    """Make a table of the milliseconds that each step of a secure sum takes, except for making the masks."""
    parameters = parameters_for(num_clients, dimension)
    encoding, bits = parameters.encoding(num_clients), parameters.modulus_bits
    update = np.full(dimension, 0.9 / np.sqrt(dimension), dtype=np.float32)
    residues = encoding.to_residues(sample(dimension, NOISE_NAMES[0], bytes(32)))
    packed, total = pack(residues, bits), np.zeros(dimension, dtype=np.uint32)
    times = fastest(
        repeats,
        encode=lambda: encoding.encode(update),
        part_0=lambda: sample(dimension, NOISE_NAMES[0], bytes(32)),
        others=lambda: sample(dimension, NOISE_NAMES[-1], bytes(32)),
        pack=lambda: pack(residues, bits),
        unpack=lambda: add_packed(total, [packed] * num_clients, bits, 1),
        decode=lambda: encoding.decode(residues),
    )
    times["unpack"] /= num_clients
    works = {
        "encode": "clip, round and check an update",
        "part_0": f"draw noise, part 0 (threads: {NUM_THREADS})",
        "others": f"draw noise, another part (threads: {NUM_THREADS})",
        "pack": f"pack to {bits} bits",
        "unpack": f"unpack {bits} bits and add, each of {num_clients} vectors",
        "decode": "decode",
    }
    rows = [(work, f"{1e3 * times[name]:.1f}") for name, work in works.items()]
    title = f"Steps beside the masks, n = {num_clients}, {_d(dimension)}"
    return Table(title, ("step", "milliseconds"), rows)


def growth(sizes: Sequence[int], picture: Path) -> Table:
    """Measure seconds per round by cohort size on complete and sparse graphs; make a table and a picture."""
    labels = ("client, complete", "client, sparse", "server, complete", "server, sparse")
    lines: dict[str, list[tuple[float, float]]] = {label: [] for label in labels}
    rows = []
    for n in sizes:
        sparse = complete = run_round(parameters_for(n, GROWTH_DIMENSION))
        if n >= COMPLETE_BELOW:
            sparse = run_round(sparse_parameters(n, GROWTH_DIMENSION))
        seconds = (complete.client_total, sparse.client_total, complete.server_seconds, sparse.server_seconds)
        for label, value in zip(labels, seconds, strict=True):
            lines[label].append((n, value))
        rows.append((str(n), *(f"{value:.3g}" for value in seconds)))
    draw_growth(picture, "members n", {"seconds a round": lines})
    return Table(f"Seconds a round, d = {GROWTH_DIMENSION:,}, a tenth dropped", ("n", *labels), rows)


def _d(dimension: int) -> str:
    return f"d = {dimension:.3g}".replace("e+0", "e")


def _rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.1f} GB/s"


def _time(value: float) -> str:
    return f"{three(value)} s" if value >= 1 else f"{three(1e3 * value)} ms"


@dataclass(frozen=True)
class Effort:
    """The sizes of a benchmark: clients and coordinates of the measured sums, and number of repetitions.

    Attributes:
        steps: members and dimension of the steps beside the masks.
        dimensions: of masks, a small one and a large one.
        repeats: of masks of the large one.
        members: members and dimension of a round.
        sizes: members of the rounds of the growth.
    """

    steps: tuple[int, int]
    dimensions: tuple[int, int]
    repeats: int
    members: tuple[int, int]
    sizes: tuple[int, ...]


WHOLE = Effort((120, 1_000_000), (1_000_000, 11_000_000), 15, (120, 1_000_000), (30, 120, 300, 1000))
QUICK = Effort((120, 1_000_000), (1_000_000, 2_000_000), 5, (30, 100_000), (30, 120))


def main() -> None:
    """Measure secure aggregation, the cipher alone and Flower's SecAgg+, and show them in tables."""
    picture = PROJECT / "docs/secagg_growth.png"
    options = read_options(__doc__, overrides=False, quick=False, noise=False, picture=picture)
    if options.noise:
        publish([excess_table(), push_table()], options.write)
        return
    effort = QUICK if options.quick else WHOLE
    small, large = effort.dimensions
    steps = steps_table(*effort.steps, 2 * effort.repeats)
    rows = [
        *mask_rows(small, 4 * effort.repeats),
        *mask_rows(large, effort.repeats),
        *shamir_rows(),
        *round_rows(*effort.members),
    ]
    note = f"A client's memory from update to reply peaks at {peak_vectors(small):.2f} vectors of d."
    table = Table("Secure aggregation (AES-128, complete graph, t = 2/3)", HEADINGS, rows, note)
    publish([table, steps, growth(effort.sizes, options.picture)], options.write)


if __name__ == "__main__":
    main()
