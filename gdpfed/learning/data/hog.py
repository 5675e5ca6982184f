"""Histograms of oriented gradients and colours of pictures, in one batch.

Source: Dalal, Triggs, "Histograms of Oriented Gradients for Human Detection", CVPR 2005, in the form of
scikit-image's `hog`: 9 orientations, blocks of 2x2 cells, L2-Hys.
"""

import math

import numpy as np
import numpy.typing as npt

from gdpfed.late_import import late_import

torch = late_import("torch")
functional = late_import("torch.nn.functional")

CELLS = 4
BLOCK_CELLS = 2
ORIENTATIONS = 9
LARGEST_SHARE = 0.2
SMALLEST_NORM = 1e-5
CHUNK = 256
LEAST_SIZE = 8
"""Two pixels a cell."""


def hog(pictures: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """324 numbers on edges and 16 a channel on colour: 372 of a picture in colour, 340 of one in grey.

    A picture has 4x4 cells. In each, the lengths of the gradients (central differences, of the channel where
    they are longest; none at the border) are averaged by orientation, in 9 bins of 20 degrees without sign.
    Every 2x2 cells are a block of 36 such means, which is brought to norm 1, cut at 0.2 and brought to norm
    1 again. The colours are the means of the channels over the cells.

    Args:
        pictures: shape (N, channels, height, width), scaled to [-1, 1].

    Returns:
        Shape (N, 324 + 16 channels), float32: the blocks in rows, their cells in rows, the orientations of a
        cell; then the colours.
    """
    blocks = (CELLS - BLOCK_CELLS + 1) ** 2 * BLOCK_CELLS**2 * ORIENTATIONS
    nothing = np.zeros((0, blocks + CELLS**2 * pictures.shape[1]), dtype=np.float32)
    chunks = (pictures[start : start + CHUNK] for start in range(0, len(pictures), CHUNK))
    return np.concatenate([nothing, *(_described(chunk) for chunk in chunks)])


def _described(pictures: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    x = torch.from_numpy(pictures)
    down, right = torch.zeros_like(x), torch.zeros_like(x)
    # In colours from 0 to 1, as the least norm takes them.
    down[:, :, 1:-1] = (x[:, :, 2:] - x[:, :, :-2]) / 2
    right[..., 1:-1] = (x[..., 2:] - x[..., :-2]) / 2
    longest = (down**2 + right**2).argmax(dim=1, keepdim=True)
    down, right = down.gather(1, longest)[:, 0], right.gather(1, longest)[:, 0]
    angles = torch.remainder(torch.atan2(down, right), math.pi) * (ORIENTATIONS / math.pi)
    bins = angles.long().clamp(max=ORIENTATIONS - 1)
    lengths = torch.zeros(len(x), ORIENTATIONS, *x.shape[2:])
    lengths.scatter_(1, bins[:, None], torch.hypot(down, right)[:, None])
    cells = functional.adaptive_avg_pool2d(lengths, CELLS)
    windows = cells.unfold(2, BLOCK_CELLS, 1).unfold(3, BLOCK_CELLS, 1).permute(0, 2, 3, 4, 5, 1)
    blocks = windows.flatten(3)
    for largest in (LARGEST_SHARE, 1.0):
        norms = torch.sqrt((blocks**2).sum(dim=-1, keepdim=True) + SMALLEST_NORM**2)
        blocks = (blocks / norms).clamp(max=largest)
    colours = functional.adaptive_avg_pool2d(x, CELLS).flatten(1)
    return np.asarray(torch.cat([blocks.flatten(1), colours], dim=1).numpy(), dtype=np.float32)
