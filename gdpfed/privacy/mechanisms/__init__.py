"""Privacy mechanisms, one per folder: the privacy cost of a run, and the conditions that clients check."""
