"""Client-level DP with sampling: noised sums over sampled clients."""
