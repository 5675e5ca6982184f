"""A federation's logic without its network: it takes and returns plain values, which Flower apps carry.

What it logs is a line of Flower's log, beside those of the apps.
"""

import logging

from gdpfed.child_process import FLOWER_LOGGER

log = logging.getLogger(FLOWER_LOGGER).log
