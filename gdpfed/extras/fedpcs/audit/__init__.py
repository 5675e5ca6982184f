"""The audit of FedPCS runs: recomputes budgets, and redraws samples that depend on released values."""
