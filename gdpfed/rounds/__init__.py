"""One run: round loop, sums and observers, the same for both kinds of fleet."""
