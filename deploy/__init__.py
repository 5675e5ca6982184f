"""Describe a federation of separate data owners once, and run it as containers or as processes."""
