"""Steps on records under Gaussian noise."""
