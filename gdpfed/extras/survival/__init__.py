"""Time to event: labels that are times, discrete hazards as a loss, and metrics of survival."""
