"""Limits on runs, used by configuration and clients alike, since clients read no configuration.

This module imports nothing, so that a node can read it.
"""

MOST_STEPS = 100_000
"""Local steps of a client in a round."""
MOST_BATCH = 1_000_000
"""Records in a batch."""
VOTABLE = ("learning_rate", "momentum", "learning_rate_decay")
"""Settings of training on which no accounting depends, so that clients may vote on them, in this order."""
MOST_SETTINGS = 16
"""Of a vote: each is one more coordinate with noise, and one more run that every client tries."""
