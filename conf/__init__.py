"""Configuration: Hydra option files, the dataclass schema behind them, and the one call that loads them."""
