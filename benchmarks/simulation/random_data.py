"""Writes random data in the formats of Fashion-MNIST, CIFAR-10 and Shakespeare's plays.

Training takes as long on them as on the real data."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from gdpfed.learning.data.published_pictures import FMNIST_FILES
from gdpfed.learning.data.text import CHARACTERS

SIZES = {"train": 60_000, "t10k": 10_000}
EDGE, NUM_CLASSES = 28, 10


def draw_pictures(directory: Path) -> None:
    """Write four files with random pictures, for ``dataset=fmnist dataset.path=<directory>``."""
    generator = np.random.default_rng(0)
    for name in FMNIST_FILES:
        size = next(size for part, size in SIZES.items() if f"/{part}-" in name)
        shape, top = ((size, EDGE, EDGE), 256) if "images" in name else ((size,), NUM_CLASSES)
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_idx(generator.integers(top, size=shape, dtype=np.uint8)))


def draw_colour_pictures(path: Path, *, count: int, tested: int = 100) -> None:
    """Write random pictures of CIFAR-10's shape, for training and for tests; read by ``dataset=npz``."""
    generator = np.random.default_rng(0)
    arrays: dict[str, npt.NDArray[np.generic]] = {}
    for part, size in (("train", count), ("test", tested)):
        arrays[f"x_{part}"] = generator.uniform(-1, 1, (size, 3, 32, 32)).astype(np.float32)
        arrays[f"y_{part}"] = np.arange(size) % NUM_CLASSES
    np.savez(path, allow_pickle=False, **arrays)


def _idx(values: npt.NDArray[np.uint8]) -> bytes:
    """Encode an array in IDX format: two zero bytes, type (8 is a byte), dimensions, sizes, data."""
    sizes = np.asarray(values.shape, dtype=">i4").tobytes()
    return bytes([0, 0, 8, values.ndim]) + sizes + values.tobytes()


LETTERS = [character for character in CHARACTERS if character.isalpha()]


def draw_plays(path: Path, *, num_roles: int, num_characters: int) -> None:
    """Write a random text of plays, for ``dataset=shakespeare dataset.path=<path>``."""
    generator = np.random.default_rng(0)
    speeches = [
        f"ROLE {role}:\n{''.join(generator.choice(LETTERS, num_characters))}" for role in range(num_roles)
    ]
    path.write_text("\n\n".join(speeches) + "\n", "utf-8")
