"""The audit of FedPCS runs: recomputes budgets, and repeats client sampling that uses released values."""
