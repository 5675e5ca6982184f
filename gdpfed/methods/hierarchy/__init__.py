"""Devices behind edges: H2FDP, its baselines, its control, and the cloud of a layered federation."""
