"""Sampling: who takes part in a round, and what that hides."""
