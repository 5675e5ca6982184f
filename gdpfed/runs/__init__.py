"""A run on disk: its records, names, directory and checkpoint."""
