"""The part of `gdpfed audit` for FedPCS: recomputes budgets, and samples that follow from released values."""
