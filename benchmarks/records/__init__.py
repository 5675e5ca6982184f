"""DP-SGD on the records of one client beside Opacus and beside plain SGD, and of a cohort out of many."""
