"""Reads text files of any encoding, compressed ones, too, and returns their text in blocks of UTF-8."""

import bz2
import codecs
import gzip
import lzma
import zlib
from collections.abc import Callable, Generator, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from gdpfed.errors import LearningError
from gdpfed.learning.data.file_form import FILES_FILE, Found
from gdpfed.learning.data.unpacked import refuse_packed_well

Blocks = Generator[bytes, None, None]
BLOCK = 4 * 2**20
LONGEST_LINE = 2**31 - 2**16
MOST_TIMES = 1000
SIGNS = (
    (b"\x28\xb5\x2f\xfd", "compressed by zstd: unpack it"),
    (b"\xd0\xcf\x11\xe0", "an old Excel file: save it as CSV"),
    (b"PK\x03\x04", "an Excel file or a ZIP archive? save it as CSV, or unpack it"),
    (b"PAR1", "a Parquet file: let its name end in .parquet"),
)
"""The first bytes of files that are not text, and what they are."""
PACKED: Mapping[bytes, Callable[[BinaryIO], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ": lzma.open,
}
"""By the first bytes of a packed file, what unpacks it; its name says nothing."""
UTF32 = (codecs.BOM_UTF32_LE, codecs.BOM_UTF32_BE)
UTF16 = {codecs.BOM_UTF16_LE: "utf-16-le", codecs.BOM_UTF16_BE: "utf-16-be"}
HEAD = 200
FALLBACK = "cp1252"
"""What a line is read in that is not UTF-8, where nobody says."""


def encoded_blocks(path: Path, own: str | None, declared: str, place: str, found: Found) -> Blocks:
    """Yield the text of a file as UTF-8, decompressed and without a byte order mark.

    UTF-16 is known by its mark, or by the zeros of its first letters. Of other files each line is UTF-8, or
    else in the declared encoding, which is Windows-1252 where none is: a line says nothing of another one.

    `own`: the encoding as the site says it; None to look. `declared`: for lines that are not UTF-8.
    `found`: told how many lines these are.

    Raises LearningError: no such file, a damaged one, or bytes that are not text; says in which line.
    """
    try:
        with path.open("rb") as file:
            begins = file.read(max(map(len, PACKED)))
            file.seek(0)
            unpack = next((each for sign, each in PACKED.items() if begins.startswith(sign)), None)
            blocks = _unpacked(file if unpack is None else unpack(file), path.stat().st_size, place)

            head = next(blocks, b"")
            encoding = _encoding(head, own, place)
            if own is None and encoding in UTF16.values():
                found.head.append(f"read as {encoding}")
            for mark in (codecs.BOM_UTF8, *UTF16):
                head = head.removeprefix(mark)
            if encoding is None:
                pieces = _whole_lines([head], blocks, place)
            else:
                pieces = _decoded(encoding, head, blocks, place)

            fallback = FALLBACK if declared in ("utf-8", "utf-16") else declared
            line = 1
            for piece in pieces:
                text = piece if encoding is not None else _utf8(piece, fallback, place, line, found)
                if (zero := text.find(b"\0")) >= 0:
                    line += text.count(b"\n", 0, zero)
                    raise LearningError(
                        f"{place}: byte 0 in line {line}: a text cannot have this byte; take it out"
                    )
                line += text.count(b"\n")
                yield text
    except (EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise LearningError(f"{place} cannot be unpacked ({error}): pack it again") from None
    except OSError as error:
        raise LearningError(f"{place} cannot be read: {error.strerror or error}") from None


def _unpacked(file: BinaryIO, packed: int, place: str) -> Iterator[bytes]:
    size = 0
    while block := file.read(BLOCK):
        size += len(block)
        refuse_packed_well(place, packed, size, MOST_TIMES)
        yield block


def _encoding(head: bytes, own: str | None, place: str) -> str | None:
    """Return a file's encoding, from its first bytes or as its owner states it; None if neither tells it."""
    if head.startswith(UTF32):
        raise LearningError(f"{place}: this text is in UTF-32, which is not read: save it in UTF-8")
    marked = next((name for mark, name in UTF16.items() if head.startswith(mark)), None)
    for sign, words in SIGNS:
        if head.startswith(sign):
            raise LearningError(f"{place}: this is not a text ({words})")
    zeros = [head[start:HEAD:2].count(0) > len(head[:HEAD]) // 3 for start in (0, 1)]
    unmarked = "utf-16-le" if zeros == [False, True] else "utf-16-be" if zeros == [True, False] else None
    known = marked or unmarked or ("utf-8" if head.startswith(codecs.BOM_UTF8) else None)
    if own is not None and known is not None and not known.startswith(own):
        raise LearningError(
            f"{place}: {FILES_FILE} says encoding: {own}, and its first bytes say {known}: leave it out"
        )
    return known or own


def _whole_lines(first: list[bytes], blocks: Iterator[bytes], place: str) -> Iterator[bytes]:
    """Yield a text file's blocks, cut anew at ends of lines; raise LearningError for a line above 2 GiB."""
    parts = first
    for block in blocks:
        cut = max(block.rfind(b"\n"), block.rfind(b"\r")) + 1
        if cut:
            yield b"".join([*parts, block[:cut]])
            parts = [block[cut:]]
        else:
            parts.append(block)
            if sum(map(len, parts)) > LONGEST_LINE:
                raise LearningError(f"{place} has a line of more than 2 GiB: name a table in CSV")
    yield b"".join(parts)


def _utf8(piece: bytes, fallback: str, place: str, line: int, found: Found) -> bytes:
    """Convert complete lines to UTF-8: a line that is not UTF-8 is decoded with the encoding `fallback`."""
    try:
        if not piece.isascii():
            piece.decode()
        return piece
    except UnicodeDecodeError:
        pass
    made = []
    for number, text in enumerate(piece.splitlines(keepends=True), start=line):
        try:
            text.decode()
            made.append(text)
        except UnicodeDecodeError as wrong:
            try:
                made.append(text.decode(fallback).encode())
            except UnicodeDecodeError as error:
                raise LearningError(
                    f"{place}: byte 0x{text[error.start]:02x} in line {number} is neither utf-8 nor "
                    f"{fallback}: set encoding in {FILES_FILE}"
                ) from wrong
            found.recoded[fallback] += 1
    return b"".join(made)


def _decoded(encoding: str, head: bytes, blocks: Iterator[bytes], place: str) -> Iterator[bytes]:
    """Convert a file in one encoding to blocks of UTF-8."""
    decoder, line, block = codecs.getincrementaldecoder(encoding)(), 1, head
    while True:
        following = next(blocks, None)
        try:
            text = decoder.decode(block, final=following is None).encode()
        except UnicodeDecodeError as error:
            line += error.object.count(b"\n", 0, error.start)
            wrong = error.object[error.start]
            raise LearningError(
                f"{place}: byte 0x{wrong:02x} in line {line} is not {encoding}: save the file in {encoding}"
            ) from None
        line += text.count(b"\n")
        yield text
        if following is None:
            return
        block = following
