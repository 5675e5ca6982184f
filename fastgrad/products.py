"""Matrix products of float32 on a CPU, by the library that uses the whole width of the processor's vectors.

torch multiplies matrices by MKL. On processors of other makers than Intel, MKL takes vectors of 256 bits
(AVX2), even where the processor has 512 (AVX-512). oneDNN, which torch also has, takes 512: its larger
products are 1.3 to 4 times as fast there. It starts each one later, so small products stay with MKL. Both add
up in float32, in another order.
"""

from functools import cache, partial
from pathlib import Path

import torch

from fastgrad.layer import Call

# In operations (twice the multiplications) and numbers of the result; with less, oneDNN is slower.
LEAST_OPERATIONS, LEAST_RESULTS = 4e6, 1024
CPU_FILE = Path("/proc/cpuinfo")


def product(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> Call:
    """Return a call that writes the product of two matrices into ``out``.

    One row of the product may depend on the number of the rows in its last bits, by either library. So this
    is for sums over records, and not where a record's own gradient must not depend on other records.

    Args:
        left: (m, k), float32.
        right: (k, n), float32.
        out: (m, n), float32.
    """
    operations = 2 * left.shape[0] * left.shape[1] * right.shape[1]
    if operations < LEAST_OPERATIONS or out.numel() < LEAST_RESULTS or not is_wider_in_onednn():
        return partial(torch.mm, left, right, out=out)
    return partial(by_onednn, left, right, out)


def by_onednn(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor) -> None:
    """Write the product of two matrices into ``out``, computed by oneDNN; shapes as in `product`."""
    # It takes the second matrix as a linear layer has it, (n, k), and neither copies a transposed one.
    out.copy_(torch.ops.mkldnn._linear_pointwise(left, right.t(), None, "none", [], ""))


@cache
def is_wider_in_onednn() -> bool:
    """Whether torch has oneDNN and this is a processor of AMD with AVX-512, which MKL does not use there."""
    has_both = all(each.is_available() for each in (torch.backends.mkl, torch.backends.mkldnn))
    if not has_both or torch.backends.cpu.get_cpu_capability() != "AVX512":
        return False
    try:
        is_amd = "AuthenticAMD" in CPU_FILE.read_text(encoding="ascii", errors="replace")
    except OSError:
        return False
    return is_amd and hasattr(torch.ops.mkldnn, "_linear_pointwise")
