"""The second look at runs of statistics, which shares no code with what counts."""
