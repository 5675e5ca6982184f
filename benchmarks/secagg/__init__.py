"""Secure aggregation against the raw cipher and against Flower's SecAgg+."""
