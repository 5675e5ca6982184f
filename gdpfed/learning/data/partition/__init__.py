"""Partitions: which client holds which examples, computed on every node from one seed."""

from gdpfed.learning.data.partition.choice import Partition

__all__ = ["Partition"]
