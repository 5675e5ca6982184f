"""What tests and benchmarks share: grids and sessions without a network, and small runs."""
