"""Votes on training settings: a client tries each in rounds of local training and votes for the best."""

from gdpfed.clients.works.vote import check as check
from gdpfed.clients.works.vote import check_grid as check_grid
from gdpfed.clients.works.vote import model_dimension as model_dimension
from gdpfed.clients.works.vote import work as work
