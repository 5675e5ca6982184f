"""Start Flower: temporary folders for its processes, `flwr run`, and the simulation backend."""
