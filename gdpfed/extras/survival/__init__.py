"""Time to event: labels that are times, discrete hazards as a loss, concordance and the Brier score."""
