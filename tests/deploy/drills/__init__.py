"""Drills that follow docs/operations.md on a whole federation, mostly as local processes."""
