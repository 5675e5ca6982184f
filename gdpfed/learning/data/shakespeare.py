"""Shakespeare's plays: predict the next character; every role is a client."""

from pathlib import Path

import numpy as np

from gdpfed.errors import LearningError
from gdpfed.learning.data.dataset import Dataset
from gdpfed.learning.data.roles import Role, roles_of_leaf, roles_of_plays
from gdpfed.learning.data.source import DataSource
from gdpfed.learning.data.text import VOCABULARY_SIZE, joined

DEFAULT_SEQUENCE_LENGTH = 80
DEFAULT_MIN_CHARACTERS = 100
DEFAULT_TEST_FRACTION = 0.2
DEFAULT_TEST_STRIDE = 40


def load(source: DataSource) -> Dataset:
    """Windows of every role with ``min_characters``; every training window is one example.

    Clients are numbered in an order that is drawn once and for all, since groups of equal budget are
    ranges of numbers and must not depend on what a role says.

    Raises:
        LearningError: no such file, or one of another form, or no role that says enough.
    """
    source.allow("path", "sequence_length", "min_characters", "test_fraction", "test_stride")
    length = source.sequence_length or DEFAULT_SEQUENCE_LENGTH
    minimum = source.min_characters or DEFAULT_MIN_CHARACTERS
    spoken = _roles(source, length)
    roles = [role for role in spoken if role.num_characters >= minimum and len(role.train) > 0]
    if not roles or not any(len(role.test) for role in roles):
        raise LearningError(
            f"dataset.path={source.path}: none of {len(spoken)} roles has text to train and test on, with "
            f"dataset.min_characters={minimum} and dataset.sequence_length={length}"
        )
    roles.sort(key=lambda role: role.name)
    np.random.default_rng(0).shuffle(roles)
    return Dataset(
        train=joined([role.train for role in roles], length),
        test=joined([role.test for role in roles], length),
        num_classes=VOCABULARY_SIZE,
        owners=np.repeat(np.arange(len(roles)), [len(role.train) for role in roles]),
    )


def _roles(source: DataSource, sequence_length: int) -> list[Role]:
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
        return roles_of_leaf(path, sequence_length=sequence_length, test_stride=stride)
    fraction = DEFAULT_TEST_FRACTION if source.test_fraction is None else source.test_fraction
    return roles_of_plays(path, sequence_length=sequence_length, test_fraction=fraction, test_stride=stride)
