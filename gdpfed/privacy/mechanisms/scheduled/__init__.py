"""Scheduled turns: sums over clients whose turn it is, with correlated noise."""
