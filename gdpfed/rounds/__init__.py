"""Carries out a run: rounds, sums of updates, and observers, for simulated clients and for real nodes."""
