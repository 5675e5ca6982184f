"""Votes on training settings, which each client tries in rounds of local training."""

from gdpfed.clients.works.vote import check as check
from gdpfed.clients.works.vote import check_grid as check_grid
from gdpfed.clients.works.vote import model_dimension as model_dimension
from gdpfed.clients.works.vote import work as work
