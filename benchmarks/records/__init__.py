"""DP-SGD on records: one client beside Opacus and plain SGD, and cohorts from small and large populations."""
