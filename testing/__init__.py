"""Helpers that tests and benchmarks share, such as Flower grids without a network and small runs."""
