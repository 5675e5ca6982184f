"""Planning: groups of clients, their rates, and the noise that keeps them within their budgets."""
