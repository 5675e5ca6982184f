"""Who holds which examples: computed from a seed, the same on every node, without sending data."""

from gdpfed.learning.partition.choice import Partition

__all__ = ["Partition"]
