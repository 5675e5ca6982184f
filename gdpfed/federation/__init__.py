"""The logic of server and nodes without network code; the Flower apps send and receive the messages.

What it logs is a line of Flower's log, beside those of the apps.
"""

import logging

from gdpfed.child_process import FLOWER_LOGGER

log = logging.getLogger(FLOWER_LOGGER).log
