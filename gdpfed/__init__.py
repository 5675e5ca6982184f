"""Federated learning under client-level differential privacy with a budget of each client's own."""
