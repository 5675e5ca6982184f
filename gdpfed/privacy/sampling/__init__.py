"""Sampling: who takes part in a round, and how much privacy secret sampling adds."""
