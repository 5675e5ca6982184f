"""Empirical privacy audit: put canaries into simulated runs, and bound epsilon by what the runs reveal."""
