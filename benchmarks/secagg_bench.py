"""Secure aggregation against the raw cipher and against Flower's SecAgg+: one table, one run.

python benchmarks/secagg_bench.py            the table and docs/secagg_growth.png, about ten minutes
python benchmarks/secagg_bench.py --quick    the table on smaller work and a plot up to n = 120
"""

import argparse
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import secagg_flower as flower
from cryptography.hazmat.primitives.ciphers import CipherContext
from secagg_growth import plot_growth
from secagg_rounds import parameters_for, peak_vectors, run_round

from secagg.prg import add_masks, cipher_stream, mask_stream
from secagg.shamir import recover, split

SUITE = "aes128ctr"
MASKS = 20
_CHUNK = 256 * 1024
Row = tuple[str, str, str, float, str]


def raw_keystream(stream: CipherContext, num_bytes: int) -> None:
    """The cipher alone, into one reused buffer in cache."""
    zeros, buffer = bytes(_CHUNK), bytearray(_CHUNK)
    for _ in range(num_bytes // _CHUNK):
        stream.update_into(zeros, buffer)


def keystream_and_masks(dimension: int, threads: int, repeats: int) -> tuple[float, float, float]:
    """Seconds a mask of the cipher alone, in CTR mode and by way of GCM, and of our masks.

    On as many threads. Many short runs in turn, the fastest of each, so that a busy neighbour slows all
    or none.
    """
    vector = np.zeros(dimension, dtype=np.uint32)
    masks = [(bytes([number]) * 16, 1) for number in range(MASKS)]
    share = 4 * dimension * MASKS // threads // _CHUNK * _CHUNK
    ctr = fused = ours = float("inf")

    def alone(stream: Callable[[], CipherContext]) -> float:
        streams = [stream() for _ in range(threads)]
        return flower.seconds(lambda: list(pool.map(raw_keystream, streams, [share] * threads)))

    with ThreadPoolExecutor(threads) as pool:
        for _ in range(repeats):
            ctr = min(ctr, alone(lambda: cipher_stream(SUITE, bytes(16))))
            fused = min(fused, alone(lambda: mask_stream(SUITE, bytes(16), 0)))
            ours = min(ours, flower.seconds(lambda: add_masks(vector, masks, SUITE, threads)))
    scale = 4 * dimension / (share * threads)
    return ctr * scale, fused * scale, ours / MASKS


def mask_rows(dimension: int, repeats: int) -> list[Row]:
    size, rows = 4 * dimension, []
    for threads, wanted in ((1, "0.8"), (2, "0.75" if dimension > 5e6 else "-")):
        ctr, fused, ours = keystream_and_masks(dimension, threads, repeats)
        name = f"mask and add, d = {dimension:g}, {threads} thread{'s'[: threads - 1]}"
        rows.append((name, _rate(size / ours), f"AES-CTR alone {_rate(size / ctr)}", ctr / ours, wanted))
        rows.append((name, _rate(size / ours), f"AES-GCM alone {_rate(size / fused)}", fused / ours, "-"))
        if threads == 1:
            flowers = flower.mask_seconds(dimension)
            rows.append((name, _time(ours), f"Flower {_time(flowers)}", flowers / ours, "4"))
    return rows


def _rate(bytes_per_second: float) -> str:
    return f"{bytes_per_second / 1e9:.1f} GB/s"


def shamir_rows() -> list[Row]:
    secret = bytes(range(32))
    shares = split(secret, 120, 80, os.urandom)
    chosen = {x: shares[x - 1] for x in range(1, 81)}
    ours = (
        flower.seconds(lambda: split(secret, 120, 80, os.urandom), 50),
        flower.seconds(lambda: recover(chosen, 32), 50),
    )
    theirs = flower.shamir_seconds(120, 80, secret)
    return [
        (f"Shamir {what}, 120 holders, t = 80", _time(a), f"Flower {_time(b)}", b / a, "1000")
        for what, a, b in zip(("split", "recover"), ours, theirs, strict=True)
    ]


def round_rows(num_clients: int, dimension: int) -> list[Row]:
    dropped = num_clients // 10
    parameters = parameters_for(num_clients, dimension)
    cost = run_round(parameters, dropped)
    sharing, masking = flower.client_seconds(num_clients, parameters.threshold, dimension)
    server = flower.server_seconds(num_clients, parameters.threshold, dimension, dropped)
    where = f"n = {num_clients}, d = {dimension:g}"
    rows = [
        (f"client, key sharing, {where}", cost.client_seconds["share"], sharing, "200"),
        (f"client, masked input, {where}", cost.client_seconds["mask"], masking, "5"),
        (f"server, {dropped} dropped, {where}", cost.server_seconds, server, "100"),
    ]
    return [(name, _time(a), f"Flower {_time(b)}", b / a, want) for name, a, b, want in rows]


def _time(value: float) -> str:
    return f"{value:.2f} s" if value >= 1 else f"{value * 1e3:.3g} ms"


def print_table(rows: Iterable[Row]) -> None:
    """Print each row as soon as it is measured."""
    print(f"{'work':<46}{'ours':>12}  {'compared with':<26}{'ratio':>8}{'aim':>7}", flush=True)
    for name, ours, other, ratio, wanted in rows:
        shown = f"{ratio:.2f}" if ratio < 10 else f"{ratio:.0f}"
        print(f"{name:<46}{ours:>12}  {other:<26}{shown:>8}{wanted:>7}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="less work")
    parser.add_argument("--no-plot", action="store_true", help="only the table")
    parser.add_argument("--plot", type=Path, default=Path("docs/secagg_growth.png"))
    arguments = parser.parse_args()
    large, repeats = (2_000_000, 5) if arguments.quick else (11_000_000, 15)
    work: list[Callable[[], list[Row]]] = [
        lambda: mask_rows(1_000_000, 4 * repeats),
        lambda: mask_rows(large, repeats),
        shamir_rows,
        lambda: round_rows(*((30, 100_000) if arguments.quick else (120, 1_000_000))),
    ]
    print_table(row for part in work for row in part())
    print(f"\nA client's peak from residues to reply: {peak_vectors(1_000_000):.2f} vectors of d (aim: 4)")
    if not arguments.no_plot:
        plot_growth(arguments.plot, (30, 120) if arguments.quick else (30, 120, 300, 1000))


if __name__ == "__main__":
    main()
