"""Drills of docs/operations.md on the topology as processes of this machine."""
