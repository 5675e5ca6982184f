"""Helpers that write small random data sets in the file formats of the published data sets."""

import gzip
import hashlib
import pickle
import struct

import numpy as np
from scipy.io import savemat


def md5(path):
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


def write_idx(path, values):
    """Write values in MNIST's format: two zero bytes, type 8 (uint8), number of axes, lengths, values."""
    header = struct.pack(f">BBBB{values.ndim}I", 0, 0, 8, values.ndim, *values.shape)
    path.write_bytes(gzip.compress(header + values.astype(np.uint8).tobytes()))


def write_fmnist(root, rng, sizes=(60, 20)):
    """Write Fashion-MNIST's four .gz files; return their contents and the list of checksums."""
    raw = root / "FashionMNIST" / "raw"
    raw.mkdir(parents=True)
    pictures, resources = [], []
    for part, size in zip(("train", "t10k"), sizes, strict=True):
        x, y = rng.integers(0, 256, (size, 28, 28)), rng.integers(0, 10, size)
        for kind, values in (("images-idx3", x), ("labels-idx1", y)):
            path = raw / f"{part}-{kind}-ubyte.gz"
            write_idx(path, values)
            resources.append((path.name, md5(path)))
        pictures.append((x[:, None], y))
    return pictures, resources


def write_svhn(root, rng, sizes=(30, 10)):
    """Write SVHN's two .mat files, with label 10 for digit 0; return the contents and the checksums."""
    pictures, table = [], {}
    for part, size in zip(("train", "test"), sizes, strict=True):
        x, y = rng.integers(0, 256, (size, 3, 32, 32)).astype(np.uint8), rng.integers(0, 10, size)
        path = root / f"{part}_32x32.mat"
        savemat(path, {"X": x.transpose(2, 3, 1, 0), "y": np.where(y == 0, 10, y)[:, None].astype(np.uint8)})
        table[part] = ["http://localhost:1/", path.name, md5(path)]
        pictures.append((x, y))
    return pictures, table


def write_cifar10(root, rng, size=8):
    """Write five training batches and a test batch; return the contents and torchvision's checksums."""
    folder = root / "cifar-10-batches-py"
    folder.mkdir()
    pictures, checksums = [], []
    for name in (*(f"data_batch_{number}" for number in range(1, 6)), "test_batch"):
        x, y = rng.integers(0, 256, (size, 3, 32, 32)).astype(np.uint8), rng.integers(0, 10, size)
        (folder / name).write_bytes(pickle.dumps({"data": x.reshape(size, -1), "labels": y.tolist()}))
        checksums.append([name, md5(folder / name)])
        pictures.append((x, y))
    meta = folder / "batches.meta"
    meta.write_bytes(pickle.dumps({"label_names": [f"class {k}" for k in range(10)]}))
    return pictures, checksums, md5(meta)


def play(rng, roles, characters):
    """Return a play with about ``characters`` characters for each role, and what each role says."""
    said: dict[str, list[str]] = {role: [] for role in roles}
    blocks = []
    for _ in range(max(1, characters // 60)):
        for role in roles:
            speech = "\n".join(f"O {''.join(rng.choice(list('abcdefgh ,.$'), 27))}!" for _ in range(2))
            blocks.append(f"{role}:\n{speech}")
            said[role].append(speech)
    return "\n\n".join(blocks) + "\n", said
