"""Benchmarks: most modules here are commands, ``python -m benchmarks.<name>``, that measure something."""
