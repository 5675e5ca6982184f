"""Measurements side by side; each module here is a command, ``python -m benchmarks.<name>``."""
