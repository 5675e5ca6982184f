"""Edges between devices and a cloud: an edge is the server of its devices, and one client of the cloud."""
