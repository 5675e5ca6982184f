"""Experiments: many runs or plans side by side, as a table and a picture of the paper."""
