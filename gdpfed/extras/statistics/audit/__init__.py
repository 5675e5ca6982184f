"""The audit of runs that count private statistics; it shares no code with the counting."""
