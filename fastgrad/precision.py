"""The precision of matrix products and convolutions on a GPU."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def float32_products(tf32: bool = False) -> Iterator[None]:
    """A context in which GPUs multiply and convolve repeatably in float32, or with ``tf32`` in TF32.

    torch takes TF32 for convolutions if nobody says otherwise: its products have 10 bits, and the gradient of
    a deep network is off by more than a hundredth. It also takes sums in an order that no run has twice.
    """
    precision, convolutions = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    deterministic = torch.backends.cudnn.deterministic
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.deterministic = True
    torch.set_float32_matmul_precision("high" if tf32 else "highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(precision)
        torch.backends.cudnn.allow_tf32 = convolutions
        torch.backends.cudnn.deterministic = deterministic
