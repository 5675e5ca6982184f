"""Benchmarks of DP-SGD on records: one client beside Opacus and plain SGD, and large populations."""
