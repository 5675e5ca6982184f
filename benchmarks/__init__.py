"""Benchmarks: each module here is a command, ``python -m benchmarks.<name>``, that measures something."""
