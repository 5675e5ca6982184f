"""Checks runs of random trees: draws their splits again, and recomputes the privacy cost.

Splits are free only where no data chose them. So they are drawn again from the saved declaration and the
run's seed, and compared with those in the file of the model's weights. A record is in one leaf of each of K
trees with its gradient over sqrt(K), so it moves a sum by the norm of its gradient, which is clipped to C.
Where every round takes all records, T rounds of noise C sigma are one Gaussian release of parameter
mu = sqrt(T) / sigma, whose delta is Phi(mu / 2 - eps / mu) - e^eps Phi(-mu / 2 - eps / mu) (Balle and Wang,
arXiv:1805.06530, Theorem 8); it must be within the budget.
"""

import hashlib
import json
import math
import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from gdpfed.audit.run_files import RunFiles

WEIGHTS = "model/weights.safetensors"
SPLITS = {"leaves.inputs": "<i8", "leaves.thresholds": "<f4"}
SLACK = 1e-6


def check_trees(directory: Path, files: RunFiles) -> Iterator[str]:
    """Yield one line for each contradiction in the files of a run of random trees."""
    if files.columns is None:
        yield "the run has trees, and no declaration that their splits are drawn from"
        return
    method, dataset = files.config["method"], files.config["dataset"]
    widths = [1] * len(files.columns.get("numeric", {}))
    for said in files.columns.get("categorical", {}).values():
        widths.append(len(said["values"] if isinstance(said, dict) else said))
    expected = {
        "trees": method["trees"],
        "depth": method["depth"],
        "columns": ",".join(map(str, widths)),
        "seed": files.config["run"]["seed"] + 1,
    }
    if dataset["model"] != "trees" or dict(dataset["model_options"]) != expected:
        yield f"config.yaml has dataset.model_options={dataset['model_options']}, where {expected} follows"
        return
    yield from _check_charge(files.plan)
    if (directory / WEIGHTS).is_file():
        # The splits are read from a safetensors file without that library.
        data = (directory / WEIGHTS).read_bytes()
        (length,) = struct.unpack("<Q", data[:8])
        header, body = json.loads(data[8 : 8 + length]), data[8 + length :]
        splits = {
            name: np.frombuffer(body[slice(*header[name]["data_offsets"])], dtype=kind)
            for name, kind in SPLITS.items()
        }
        inputs, thresholds = _drawn_splits(widths, expected["trees"] * expected["depth"], expected["seed"])
        for name, drawn in (("leaves.inputs", inputs), ("leaves.thresholds", thresholds)):
            if not np.array_equal(splits[name], drawn):
                yield (
                    f"{WEIGHTS} has other {name} than those that are drawn from the declared columns and "
                    f"seed {expected['seed']}: splits that data chose are not charged"
                )


def _check_charge(plan: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each epsilon in the plan that does not follow from the noise and the rounds."""
    if plan["works"] != ["gradient_sum"] or plan["unit"] != "record":
        yield f"plan.json charges a {plan['unit']} for {', '.join(plan['works'])}, not for sums over leaves"
        return
    normal = NormalDist()
    for number, group in enumerate(plan["groups"]):
        records = group["records"]
        whole = all(own["batch_rate"] == 1 for own in records["groups"])
        if not whole or records.get("parties", 1) != 1:
            continue
        mu = math.sqrt(records["most_rounds"]) / records["noise_multiplier"]
        for own in records["groups"]:
            epsilon = own["epsilon"]
            beyond = normal.cdf(-mu / 2 - epsilon / mu)
            found = normal.cdf(mu / 2 - epsilon / mu) - (math.exp(epsilon) * beyond if beyond else 0.0)
            if found > plan["delta"] * (1 + SLACK):
                yield (
                    f"group {number} has sums of {records['noise_multiplier']:.6g} times the bound on a "
                    f"record as noise in {records['most_rounds']} rounds, whose delta at epsilon "
                    f"{epsilon} is {found:.3g} and not {plan['delta']:g}"
                )


def _drawn_splits(widths: Sequence[int], number: int, seed: int) -> tuple[list[int], npt.NDArray[np.float32]]:
    """Draw each split's input and threshold from 16 bytes of SHA-256 of the seed and the split's number."""
    inputs, thresholds = [], []
    for question in range(number):
        digest = hashlib.sha256(b"trees %d %d" % (seed, question)).digest()
        # Of each of two words of 64 bits the last 11 are set to 0: 53 bits are left, as a float has.
        first, second = ((word & ~0x7FF) / 2**64 for word in struct.unpack(">2Q", digest[:16]))
        column = int(first * len(widths))
        inputs.append(sum(widths[:column]) + int(second * widths[column]))
        thresholds.append(second * 2 - 1 if widths[column] == 1 else 0.5)
    return inputs, np.array(thresholds, dtype=np.float32)
