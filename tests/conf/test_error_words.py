"""Tests for the texts of errors that refusals quote."""

import pytest

from conf.errors import kind_and_words, words_of


class _SilentError(Exception):
    """An error whose text cannot be made."""

    def __str__(self) -> str:
        raise RuntimeError("no text")


@pytest.mark.parametrize(
    ("error", "words", "with_kind"),
    [
        (ValueError("two\n  lines \x1b"), "two lines", "ValueError: two lines"),
        (MemoryError(), "MemoryError", "MemoryError"),
        (_SilentError(), "_SilentError", "_SilentError"),
    ],
)
def test_an_error_has_words_in_one_line_even_where_it_has_no_text(error, words, with_kind):
    assert (words_of(error), kind_and_words(error)) == (words, with_kind)
    assert (words_of(error, 3), kind_and_words(error, 3)) == (words[:3], with_kind[:3])
