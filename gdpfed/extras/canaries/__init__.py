"""Measure epsilon: insert canaries into simulated runs, and bound epsilon from what the runs reveal."""
