"""How many records go through a program at once."""

from collections.abc import Iterator

from fastgrad.lowered import Lowered

# What a pass takes for its buffers stays in the caches of a core.
CACHE_BYTES = 4 * 2**20
MOST_RECORDS = 64


def most_records(lowered: Lowered) -> int:
    """The largest power of two of records whose buffers stay in cache."""
    most = MOST_RECORDS
    while most > 1 and most * lowered.bytes_a_record > CACHE_BYTES:
        most //= 2
    return most


def pieces_of(count: int, most: int) -> Iterator[slice]:
    """As many whole passes as there are, and the rest in few other sizes, for which programs are kept."""
    begin, size = 0, most
    while begin < count:
        while size > count - begin:
            size //= 2
        yield slice(begin, begin + size)
        begin += size
