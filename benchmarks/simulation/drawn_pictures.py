"""A data set of Fashion-MNIST's form with random pixels, since what is learned does not change the work."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from gdpfed.learning.datasets.fmnist import FILES

SIZES = {"train": 60_000, "t10k": 10_000}
EDGE, NUM_CLASSES = 28, 10


def draw_pictures(directory: Path) -> None:
    """Write the four files that ``dataset=fmnist dataset.path=<directory>`` reads."""
    generator = np.random.default_rng(0)
    for name in FILES:
        size = next(size for part, size in SIZES.items() if f"/{part}-" in name)
        shape, top = ((size, EDGE, EDGE), 256) if "images" in name else ((size,), NUM_CLASSES)
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(_idx(generator.integers(top, size=shape, dtype=np.uint8)))


def _idx(values: npt.NDArray[np.uint8]) -> bytes:
    """The IDX format: two zero bytes, the type (8 is a byte), how many dimensions, their sizes, the data."""
    sizes = np.asarray(values.shape, dtype=">i4").tobytes()
    return bytes([0, 0, 8, values.ndim]) + sizes + values.tobytes()
