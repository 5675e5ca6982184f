"""Tests of files that are written whole or not at all."""

import errno
import os

import pytest

from gdpfed.files import write_whole


def test_a_file_that_finds_no_room_leaves_the_old_one_and_no_draft(tmp_path, monkeypatch):
    file = tmp_path / "checkpoint"
    write_whole(file, b"old")

    def full(descriptor):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_whole(file, b"new")
    assert [(each.name, each.read_bytes()) for each in tmp_path.iterdir()] == [("checkpoint", b"old")]
