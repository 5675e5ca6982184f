"""DP-SGD steps on clients' records."""
