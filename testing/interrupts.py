"""Ctrl-C in tests, also where the suite was started by nohup or in the background of a script."""

import signal


def take_interrupts() -> None:
    """Have SIGINT raise KeyboardInterrupt again where this process was started to ignore it.

    A process hands that down to all it starts, and what tests interrupt would then go on.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
