"""Sums over scheduled clients under correlated noise."""
