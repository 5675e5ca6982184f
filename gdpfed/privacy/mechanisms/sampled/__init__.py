"""Sums over sampled clients under Gaussian noise."""
