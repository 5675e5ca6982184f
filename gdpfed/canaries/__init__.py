"""Epsilon measured: canaries in a simulated run, what is revealed of them, and what that proves."""
