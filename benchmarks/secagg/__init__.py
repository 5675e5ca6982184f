"""Benchmarks of secure aggregation, compared with the raw cipher and with Flower's SecAgg+."""
