"""What `gdpfed audit` computes again of FedPCS: budgets, and samples that follow from releases."""
