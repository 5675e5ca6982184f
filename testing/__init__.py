"""Shared by tests and benchmarks: grids and sessions without a network, and small runs."""
