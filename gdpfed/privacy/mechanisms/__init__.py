"""The mechanisms, a folder each: what a run charges, and the terms that a node agrees to."""
