"""Flower's ClientApp of a node: one handler for each type of message."""
