"""Privacy mechanisms, one a folder: the privacy cost of a run, and the conditions that a client checks."""
