"""Sums over clients that are allocated to one round of each block."""
