"""The logic of a federation without network code; Flower apps carry the values that go in and come out.

What it logs is a line of Flower's log, beside those of the apps.
"""

import logging

from gdpfed.child_process import FLOWER_LOGGER

log = logging.getLogger(FLOWER_LOGGER).log
