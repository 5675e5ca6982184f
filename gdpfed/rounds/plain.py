"""A sum without secure aggregation, for both kinds of fleet."""

import numpy as np
import numpy.typing as npt

from gdpfed.methods.base import ClientSum
from secagg import SumParameters


def plain_sum(
    name: str, parameters: SumParameters, total: npt.NDArray[np.uint32], num_updates: int
) -> ClientSum:
    """The sum of residues that arrived without masks: the same encoding and tolerance of dropouts."""
    need = parameters.num_clients - parameters.dropout_tolerance
    if num_updates < need:
        return ClientSum(name, None, 0, f"{num_updates} updates arrived, {need} are needed")
    encoding = parameters.encoding(parameters.num_clients)
    return ClientSum(name, encoding.decode(total), num_updates, upload_bytes=4.0)
