"""A run, whoever its clients are: checks, round loop, checkpoints and files. Two fleets, one loop."""
