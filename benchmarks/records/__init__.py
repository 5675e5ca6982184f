"""Benchmarks of record-level DP-SGD: one client's steps beside Opacus and plain SGD, and rounds of many clients."""
