"""The Flower side of the server: configuration, round loop, exchanges, files of a run."""
