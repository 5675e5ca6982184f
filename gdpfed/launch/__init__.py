"""Starting Flower: homes for its processes, `flwr run`, and the simulation backend."""
