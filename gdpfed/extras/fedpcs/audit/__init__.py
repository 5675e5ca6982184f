"""The FedPCS part of `gdpfed audit`: it recomputes budgets, and samples that follow from released values."""
