"""Noised sums over the clients that are scheduled for a round (turns), with correlated noise."""
