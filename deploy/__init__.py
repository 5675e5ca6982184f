"""Describe a federation of separate parties once, and run it as containers or as processes."""
