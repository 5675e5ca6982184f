"""What `gdpfed audit` computes again of H2FDP: trust, windows and the noise of subnets."""
