"""The mechanisms, one file each: what is charged of a run, and the terms that a node agrees to."""
