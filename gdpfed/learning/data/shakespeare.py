"""The data set of Shakespeare's plays for predicting the next character, in which each role is a client.

Roles come from a text of ``ROLE:`` speeches, or from the JSON files of LEAF (Caldas et al., 2018).
"""

import json
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from gdpfed.errors import LearningError
from gdpfed.learning.data.dataset import Dataset
from gdpfed.learning.data.source import DataSource
from gdpfed.learning.data.text import VOCABULARY_SIZE, Windows, encode, joined

_BLANK_LINE = re.compile(r"\n[^\S\n]*\n\s*")
_HEAD = re.compile(r"([^\n]*\S)[^\S\n]*:[^\S\n]*(?:\n|$)")


@dataclass(frozen=True)
class Role:
    """One role of Shakespeare's plays: its training and test windows, and its number of characters."""

    name: str
    num_characters: int
    train: Windows
    test: Windows


def roles_of_plays(path: Path, *, sequence_length: int, test_fraction: float, test_stride: int) -> list[Role]:
    """Read roles from a text of speeches, separated by blank lines and headed by ``ROLE:``.

    The last ``test_fraction`` of what a role says is for testing, unless the rest would be too short
    for one window to train on; then less of it, or nothing.

    Raises LearningError: no such file, not UTF-8, or not of that form.
    """
    try:
        blocks = _BLANK_LINE.split(path.read_text(encoding="utf-8").strip())
    except OSError as error:
        raise LearningError(
            f"dataset.path={path} cannot be read ({error.strerror}): name a text of ROLE: speeches, or the "
            "directory of LEAF's files"
        ) from None
    except UnicodeDecodeError as error:
        raise LearningError(f"dataset.path={path} is not in UTF-8 ({error}): save it in UTF-8") from None
    speaker, texts = "", dict[str, list[str]]()
    for block in blocks:
        head = _HEAD.match(block)
        speaker = head[1] if head else speaker
        if not speaker:
            raise LearningError(
                f"dataset.path={path}: the text must begin with a line 'ROLE:', not with {block[:20]!r}"
            )
        speech = block[head.end() :] if head else block
        if speech:
            texts.setdefault(speaker, []).append(speech)

    roles = []
    for name, speeches in texts.items():
        text = encode("\n".join(speeches))
        edge = max(int(len(text) * (1 - test_fraction)), sequence_length + 1)
        train = _all_windows(text[:edge], sequence_length)
        test = _all_windows(text[edge:], sequence_length).thinned(test_stride)
        roles.append(Role(name, sum(map(len, speeches)), train, test))
    return roles


def _all_windows(codes: npt.NDArray[np.uint8], sequence_length: int) -> Windows:
    """Return a text's windows of ``sequence_length`` characters that are followed by one more character."""
    return Windows(codes, np.arange(max(0, len(codes) - sequence_length)), sequence_length)


def roles_of_leaf(directory: Path, *, sequence_length: int, test_stride: int) -> list[Role]:
    """Read roles from the files ``train/*.json`` and ``test/*.json`` of the LEAF benchmark.

    Raises LearningError: files are missing or not of LEAF's form, or its windows are too short.
    """
    train = _leaf_windows(directory, "train", sequence_length)
    test = _leaf_windows(directory, "test", sequence_length)
    nothing = _all_windows(encode(""), sequence_length)
    roles = []
    for name, windows in train.items():
        held_out = test.get(name, nothing).thinned(test_stride)
        roles.append(Role(name, len(windows.codes) + len(held_out.codes), windows, held_out))
    return roles


def _leaf_windows(directory: Path, part: str, sequence_length: int) -> dict[str, Windows]:
    paths = sorted((directory / part).glob("*.json")) or sorted(directory.glob(f"{part}.json"))
    if not paths:
        raise LearningError(
            f"dataset.path={directory} has neither {part}/*.json nor {part}.json: name LEAF's data "
            "directory, or a text file of 'ROLE:' speeches"
        )
    windows: dict[str, Windows] = {}
    for path in paths:
        try:
            content = json.loads(path.read_text(encoding="utf-8"))
            users = {user: content["user_data"][user] for user in content["users"]}
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LearningError(
                f"{path} is not LEAF's JSON with users and user_data ({type(error).__name__}: {error})"
            ) from None
        for user, data in users.items():
            windows[user] = _chained(path, user, data, sequence_length)
    return windows


def _chained(path: Path, user: str, data: Any, sequence_length: int) -> Windows:
    """Join one user's overlapping windows, as the LEAF benchmark stores them, into one text."""
    windows, following = (data.get(key) if isinstance(data, dict) else None for key in ("x", "y"))
    if not isinstance(windows, list) or not isinstance(following, list) or len(windows) != len(following):
        raise LearningError(f"{path}: user {user} must have one next character y for each window x")
    kinds = {(type(text), len(text)) for text in following} - {(str, 1)}
    if kinds or len({(type(text), len(text)) for text in windows}) > 1:
        raise LearningError(
            f"{path}: user {user} must have windows x of one length and single characters y, as text"
        )
    length = len(windows[0]) if windows else sequence_length
    if length < sequence_length:
        raise LearningError(
            f"{path} holds windows of {length} characters, fewer than dataset.sequence_length="
            f"{sequence_length}: set dataset.sequence_length={length}"
        )
    pieces: list[str] = []
    starts: list[int] = []
    end, tail = 0, None
    for window, character in zip(windows, following, strict=True):
        piece = character if window == tail else window + character
        pieces.append(piece)
        end += len(piece)
        starts.append(end - sequence_length - 1)
        tail = (window + character)[1:]
    return Windows(encode("".join(pieces)), np.array(starts, dtype=np.int64), sequence_length)


DEFAULT_SEQUENCE_LENGTH = 80
DEFAULT_MIN_CHARACTERS = 100
DEFAULT_TEST_FRACTION = 0.2
DEFAULT_TEST_STRIDE = 40


def load(source: DataSource) -> Dataset:
    """Load the texts of roles with at least ``min_characters`` characters; a window of text is one example.

    They begin ``train_stride`` characters apart, one by default: most characters are in many examples.

    Clients are numbered in an order that is drawn once and for all, since groups of equal budget are
    ranges of numbers and must not depend on what a role says.

    Raises LearningError: no such file, or one of another form, or no role that says enough.
    """
    source.allow("path", "sequence_length", "min_characters", "test_fraction", "test_stride", "train_stride")
    length = source.sequence_length or DEFAULT_SEQUENCE_LENGTH
    minimum = source.min_characters or DEFAULT_MIN_CHARACTERS
    if source.path is None:
        raise LearningError(
            "dataset.path is not set: name a text file of 'ROLE:' speeches, or LEAF's data directory, "
            "as in dataset.path=data/tinyshakespeare.txt"
        )
    path = Path(source.path).expanduser()
    stride = source.test_stride or DEFAULT_TEST_STRIDE
    if path.is_dir():
        if source.test_fraction is not None:
            raise LearningError(
                f"dataset.test_fraction={source.test_fraction}: {path} has a test split, leave it out"
            )
        spoken = roles_of_leaf(path, sequence_length=length, test_stride=stride)
    else:
        share = DEFAULT_TEST_FRACTION if source.test_fraction is None else source.test_fraction
        spoken = roles_of_plays(path, sequence_length=length, test_fraction=share, test_stride=stride)
    spoken = [replace(role, train=role.train.thinned(source.train_stride or 1)) for role in spoken]

    roles = [role for role in spoken if role.num_characters >= minimum and len(role.train) > 0]
    if not roles or not any(len(role.test) for role in roles):
        raise LearningError(
            f"dataset.path={source.path}: none of {len(spoken)} roles has text to train and test on, with "
            f"dataset.min_characters={minimum} and dataset.sequence_length={length}: lower one of them"
        )
    roles.sort(key=lambda role: role.name)
    np.random.default_rng(0).shuffle(roles)
    return Dataset(
        train=joined([role.train for role in roles], length),
        test=joined([role.test for role in roles], length),
        num_classes=VOCABULARY_SIZE,
        owners=np.repeat(np.arange(len(roles)), [len(role.train) for role in roles]),
    )
