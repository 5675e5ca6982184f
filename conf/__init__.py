"""The configuration of runs: YAML files of options for Hydra, dataclasses of settings, and their loading."""
