"""The files of a run: records, names, directory and checkpoint."""
