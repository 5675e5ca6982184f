"""The files of a run: its directory, their names, the log of its rounds, and the checkpoint."""
