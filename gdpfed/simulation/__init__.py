"""Training in one process: the same plan, methods and client arithmetic as over Flower, without messages."""

from gdpfed.simulation.fleet import InProcessFleet
from gdpfed.simulation.simulate import simulate

__all__ = ["InProcessFleet", "simulate"]
