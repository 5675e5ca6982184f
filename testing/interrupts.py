"""Makes Ctrl-C work in tests, even if the suite was started by nohup or in the background."""

import signal


def take_interrupts() -> None:
    """Make SIGINT raise KeyboardInterrupt again, if this process was started with SIGINT ignored.

    A process hands that down to all it starts, and what tests interrupt would then go on.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
