"""Limits on the settings of runs, in a module that clients can import without the configuration.

This module imports nothing, so that a node can read it.
"""

MOST_STEPS = 100_000
"""The largest number of local steps of a client in a round."""
MOST_BATCH = 1_000_000
"""The largest number of records in a batch."""
VOTABLE = ("learning_rate", "momentum", "learning_rate_decay")
"""Training settings on which clients may vote, in this order; privacy accounting does not depend on them."""
MOST_SETTINGS = 16
"""The most settings in a vote: each adds one noised coordinate, and one trial run at every client."""
