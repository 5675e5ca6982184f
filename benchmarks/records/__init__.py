"""Benchmarks of record-level DP-SGD: one client beside Opacus and plain SGD, and rounds of many clients."""
