"""One run: the loop over rounds, sums and observers, for simulated clients and for real nodes."""
