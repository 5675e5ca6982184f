"""Experiments: many runs or plans side by side, as the tables and figures of the paper."""
