"""Training in one process, without messages, with the same plans, methods and client work as over Flower."""

from gdpfed.simulation.in_process_fleet import InProcessFleet, simulate

__all__ = ["InProcessFleet", "simulate"]
