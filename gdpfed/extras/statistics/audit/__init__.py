"""The audit of statistics runs, which shares no code with the counting."""
