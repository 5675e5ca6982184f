"""Training in one process, without messages; plans, methods and client computations are as over Flower."""

from gdpfed.simulation.in_process_fleet import InProcessFleet, simulate

__all__ = ["InProcessFleet", "simulate"]
