"""How torch computes: the precision of products and convolutions on a GPU, and threads on a CPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock
from typing import Any

import torch

_LOCK = Lock()
_asked: list[list[Any]] = []
"""torch's settings before the first context that is open, then what each open one asks for."""


@contextmanager
def float32_products(tf32: bool = False) -> Iterator[None]:
    """A context in which GPUs multiply and convolve repeatably in float32, or with ``tf32`` in TF32.

    torch takes TF32 for convolutions if nobody says otherwise: its products have 10 bits, and the gradient of
    a deep network is off by more than a hundredth. It also takes sums in an order that no run has twice.
    These settings are torch's own, for all threads. Several may be in it, a thread for each GPU: what was set
    before comes back when the last one leaves it.
    """
    own: list[Any] = ["high" if tf32 else "highest", tf32, True]
    with _LOCK:
        if not _asked:
            cudnn = torch.backends.cudnn
            _asked.append([torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.deterministic])
        _asked.append(own)
        _set(*own)
    try:
        yield
    finally:
        with _LOCK:
            _asked[:] = [each for each in _asked if each is not own]
            _set(*_asked[-1])
            if len(_asked) == 1:
                _asked.clear()


def _set(precision: Any, convolutions: Any, deterministic: Any) -> None:
    torch.backends.cudnn.allow_tf32 = convolutions
    torch.backends.cudnn.deterministic = deterministic
    torch.set_float32_matmul_precision(precision)


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
