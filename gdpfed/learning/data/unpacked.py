"""Rejects compressed files that would become too large, before they are unpacked."""

from psutil import virtual_memory

from gdpfed.errors import LearningError

MOST_MEMORY = 0.5
"""Of the memory that is free, for what one file holds."""
ANY_SIZE = 2**28
"""Up to so many bytes nothing is said of how well a file is packed."""
GIB = 2**30


def refuse_unpacked(name: str, packed: int, unpacked: int, most_times: int) -> None:
    """Raise LearningError if a file would fill the memory, or its compression ratio is implausible.

    Args:
        name: what errors call it.
        packed: bytes of the file.
        unpacked: bytes that it takes once it is read.
        most_times: how many times as large it may become, where that is much.
    """
    if unpacked > (most := virtual_memory().available * MOST_MEMORY):
        raise LearningError(
            f"{name} holds {unpacked / GIB:.3g} GiB once it is unpacked, and {most / GIB:.3g} GiB of "
            "memory may go into it: write less into one file"
        )
    refuse_packed_well(name, packed, unpacked, most_times)


def refuse_packed_well(name: str, packed: int, unpacked: int, most_times: int) -> None:
    """Raise LearningError if a file's compression ratio is implausible.

    The arguments are those of :func:`refuse_unpacked`.
    """
    if unpacked > max(ANY_SIZE, most_times * packed):
        raise LearningError(
            f"{name} holds {unpacked / GIB:.3g} GiB once it is unpacked, {unpacked / max(1, packed):,.0f} "
            f"times its size, and data are seldom packed to less than a {most_times:,}th: leave out what is "
            "all the same, or write it without compression"
        )
