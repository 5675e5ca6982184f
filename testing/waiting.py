"""Wait for another process or thread, with a time limit."""

import time
from collections.abc import Callable


def until(holds: Callable[[], object], seconds: float = 60.0, *, every: float = 0.02) -> None:
    """Wait until a condition holds, checking it every ``every`` seconds.

    Raises:
        TimeoutError: it does not hold within ``seconds``.
    """
    deadline = time.monotonic() + seconds
    while not holds():
        if time.monotonic() > deadline:
            raise TimeoutError(f"what is waited for does not happen within {seconds:g} s")
        time.sleep(every)
