"""Local training and its losses, evaluation and its metrics."""
