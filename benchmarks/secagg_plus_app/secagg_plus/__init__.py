"""Flower's SecAgg+ around the project's local training."""
