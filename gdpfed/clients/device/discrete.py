"""Draws discrete Gaussian noise on a GPU: for one key, the same integers as on a CPU.

The words come from the CPU, whose AES is fast, and the tables are searched on the device. All of it is in
integers, so the draws are the same.
"""

from functools import lru_cache

import numpy as np
import torch

from secagg.arithmetic.discrete_gaussian import (
    ALIAS_DRAW_WORDS,
    ALIAS_START,
    DIRECT_START,
    UNSETTLED,
    shape_of,
    tables,
)
from secagg.crypto.prg import keystream

_WORD_BYTES = 8
_DIRECT_BYTES = 2
_SIGN = -(2**63)
MOST_TABLES = 16


def sample_on(device: torch.device, dimension: int, integer_stddev: float, key: bytes) -> torch.Tensor:
    """Draw discrete Gaussian noise on a device: for one key, the same integers as on a CPU.

    It is int64[dimension].
    """
    sigma, factor, cells = shape_of(integer_stddev)
    direct, high, low, alias = _tables_on(device, sigma, cells)
    words = _words_on(device, key, DIRECT_START, 2 * _DIRECT_BYTES * dimension).view(torch.int16)
    values = direct[words.int().bitwise_and_(2**16 - 1)]
    unsettled = (values == UNSETTLED).nonzero().view(-1)
    num_bytes = _WORD_BYTES * ALIAS_DRAW_WORDS * len(unsettled)
    drawn = _words_on(device, key, ALIAS_START, num_bytes).view(torch.int64).view(-1, ALIAS_DRAW_WORDS)
    cell = drawn[:, 0] & (cells - 1)
    # Unsigned words compare as signed ones do with the other sign.
    above, below = drawn[:, 1] ^ _SIGN, drawn[:, 2] ^ _SIGN
    own = (above < high[cell]) | ((above == high[cell]) & (below < low[cell]))
    values[unsettled] = torch.where(own, (cell - cells // 2).to(torch.int16), alias[cell])
    pairs = values.view(-1, 2).long()
    return pairs[:, 1] * factor + pairs[:, 0]


@lru_cache(maxsize=MOST_TABLES)
def _tables_on(
    device: torch.device, sigma: int, cells: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return, on a device, the tables from which discrete Gaussian noise is drawn.

    Their unsigned words have the top bit flipped.
    """
    law = tables(sigma, cells)
    high, low = (torch.from_numpy(each.view(np.int64) ^ _SIGN).to(device) for each in (law.high, law.low))
    direct, alias = (torch.from_numpy(each.copy()).to(device) for each in (law.direct, law.alias))
    return direct, high, low, alias


def _words_on(device: torch.device, key: bytes, start: bytes, num_bytes: int) -> torch.Tensor:
    """Return a part of an AES-256-CTR keystream as bytes on a device; the host's copy is erased."""
    here = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=device.type == "cuda")
    keystream(key, "aes256ctr", start).into(here.numpy().data)
    there = here.to(device, copy=True)
    here.zero_()
    return there
