"""Training in one process: the same plan, methods and client arithmetic as over Flower, without messages."""

from gdpfed.simulation.in_process_fleet import InProcessFleet, simulate

__all__ = ["InProcessFleet", "simulate"]
