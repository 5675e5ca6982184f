"""How torch computes: the precision of products and convolutions on a GPU, and threads on a CPU."""

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


@contextmanager
def one_thread(device: torch.device) -> Iterator[int]:
    """A context in which an operation on a CPU has one thread; its value is how many torch had before.

    Threads would split a sum over records in other ways, depending on how many there are of both.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1 if device.type == "cpu" else threads)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)
