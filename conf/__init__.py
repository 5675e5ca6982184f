"""Configuration of runs: Hydra option files, the dataclass schema behind them, and one call to load them."""
