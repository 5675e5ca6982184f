"""FedPCS: clients choose their budgets in a game with a posted reward, and are sampled accordingly."""
