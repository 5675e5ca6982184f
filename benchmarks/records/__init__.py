"""Benchmarks of record-level DP-SGD: one client against Opacus and plain SGD, and rounds of many clients."""
