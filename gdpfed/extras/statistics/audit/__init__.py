"""The audit of statistics runs; it shares no code with the counting."""
