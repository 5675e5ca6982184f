"""The configuration of runs: Hydra option files, the dataclasses of settings, and one call to load them."""
