"""Tests of next-character data: from plays, in which each role is a client, and from LEAF's files."""

import json

import numpy as np
import pytest

from gdpfed.errors import LearningError
from gdpfed.learning.data import DataSource, Windows, load_dataset
from gdpfed.learning.data.text import CHARACTERS, VOCABULARY_SIZE, encode
from testing.project import SHARED_DATA
from tests.learning import drawn_data

PLAYS = SHARED_DATA / "tinyshakespeare.txt"
LENGTH = 12


def source(path, **settings):
    return DataSource("shakespeare", str(path), **{"sequence_length": LENGTH, **settings})


@pytest.fixture
def plays(tmp_path):
    text, said = drawn_data.play(np.random.default_rng(0), ["First Citizen", "ROMEO", "All"], 600)
    path = tmp_path / "plays.txt"
    path.write_text(text)
    return path, {role: "\n".join(speeches) for role, speeches in said.items()}


def decoded(codes):
    return "".join((CHARACTERS + "$")[code] for code in codes)


def windows_of(examples):
    taken = examples.take(np.arange(len(examples)))
    return [decoded([*x, y]) for x, y in zip(taken.x, taken.y, strict=True)]


def covered(windows):
    """Return the positions of the text that windows and their labels cover."""
    return set((windows.starts[:, None] + np.arange(windows.sequence_length + 1)).ravel().tolist())


def test_vocabulary_is_leafs_and_one_more():
    assert (len(CHARACTERS), len(set(CHARACTERS)), VOCABULARY_SIZE) == (80, 80, 81)
    assert encode("\n }$é").tolist() == [0, 1, 79, 80, 80]


def test_every_role_is_a_client_and_every_window_its_own(plays):
    path, said = plays
    data = load_dataset(source(path))
    assert data.owners is not None
    assert (data.input_shape, data.input_dtype, data.num_classes) == ((LENGTH,), np.dtype(np.int64), 81)
    windows = windows_of(data.train)
    for owner in range(3):
        own = [window for window, o in zip(windows, data.owners, strict=True) if o == owner]
        role = next(role for role, text in said.items() if own[0] == text[: LENGTH + 1])
        text = said[role][: int(0.8 * len(said[role]))]
        assert own == [text[k : k + LENGTH + 1] for k in range(len(text) - LENGTH)]


def test_no_test_window_shares_a_character_with_training(plays):
    path, said = plays
    data = load_dataset(source(path, test_stride=1))
    tested = [text[int(0.8 * len(text)) :] for text in said.values()]
    assert sorted(windows_of(data.test)) == sorted(
        text[k : k + LENGTH + 1] for text in tested for k in range(len(text) - LENGTH)
    )
    held = len(covered(data.train)) + len(covered(data.test))
    assert held == sum(len(text) for text in said.values())
    every_fifth = load_dataset(source(path, test_stride=5))
    assert len(every_fifth.test) == sum(len(range(0, len(text) - LENGTH, 5)) for text in tested)


def test_roles_that_say_too_little_are_left_out(tmp_path):
    path = tmp_path / "plays.txt"
    long = "a speech that is long enough to be cut in two parts."
    path.write_text(f"A:\n{long}\n\nit goes on here.\n\nB:\nno\n\nC:\n{long}\n\nGhost:\n\n")
    data = load_dataset(source(path, min_characters=20))
    assert data.owners is not None
    assert data.owners.max() == 1
    assert len(load_dataset(source(path, min_characters=60)).train) < len(data.train)
    with pytest.raises(LearningError, match="none of 3 roles has text to train and test on"):
        load_dataset(source(path, min_characters=100))


def test_a_short_role_trains_before_it_is_tested(tmp_path):
    path = tmp_path / "plays.txt"
    path.write_text(f"A:\n{'x' * 14}\n\nB:\n{'y' * 400}\n")
    data = load_dataset(source(path, min_characters=14))
    assert data.owners is not None
    assert sorted(np.bincount(data.owners)) == [1, 320 - LENGTH]


def leaf(directory, users):
    for part in ("train", "test"):
        (directory / part).mkdir(parents=True)
        content = {"users": list(users), "user_data": {name: parts[part] for name, parts in users.items()}}
        (directory / part / "all.json").write_text(json.dumps(content))


def leaf_windows(text, length=LENGTH):
    starts = range(len(text) - length)
    return {"x": [text[k : k + length] for k in starts], "y": [text[k + length] for k in starts]}


def test_leafs_files_give_its_windows_without_their_copies(tmp_path):
    first, second = "To be, or not to be, that is the question", "Whether tis nobler in the mind"
    gap = leaf_windows(first[:20]), leaf_windows(first[20:])
    with_gap = {key: gap[0][key] + gap[1][key] for key in "xy"}
    users = {
        "HAMLET": {"train": with_gap, "test": leaf_windows(second)},
        "GHOST": {"train": leaf_windows("I am thy father's spirit"), "test": {"x": [], "y": []}},
    }
    leaf(tmp_path, users)
    data = load_dataset(source(tmp_path, test_stride=1, min_characters=10))
    expected = [x + y for user in users.values() for x, y in zip(*user["train"].values(), strict=True)]
    assert sorted(windows_of(data.train)) == sorted(expected)
    assert windows_of(data.test) == [x + y for x, y in zip(*leaf_windows(second).values(), strict=True)]
    assert isinstance(data.train, Windows)
    assert len(data.train.codes) == len(first) + len("I am thy father's spirit")
    shorter = load_dataset(source(tmp_path, test_stride=1, min_characters=10, sequence_length=5))
    assert sorted(windows_of(shorter.train)) == sorted(window[-6:] for window in expected)


def write(name, content):
    return lambda root: (root / name).parent.mkdir(exist_ok=True) or (root / name).write_bytes(content)


def leaf_of(x, y):
    return lambda root: leaf(root, {"A": {"train": {"x": x, "y": y}, "test": {"x": [], "y": []}}})


@pytest.mark.parametrize(
    ("make", "path", "settings", "words"),
    [
        (
            write("a.txt", b"no role\nat all"),
            "a.txt",
            {},
            "must begin with a line 'ROLE:', not with 'no role",
        ),
        (write("a.txt", b"A:\n\xff\xfe"), "a.txt", {}, "is not in UTF-8 .*: save it in UTF-8"),
        (write("a.txt", b""), "b.txt", {}, r"cannot be read \(No such file or directory\): name a text of"),
        (write("train/a.json", b"{}"), "", {}, "a.json is not LEAF's JSON with users and user_data"),
        (write("train/a.txt", b"{}"), "", {}, r"neither train/\*.json nor train.json"),
        (leaf_of(["ab", "bc"], ["c"]), "", {}, "user A must have one next character y for each window x"),
        (leaf_of(["ab", "b"], ["c", "d"]), "", {}, "must have windows x of one length"),
        (leaf_of(["ab"], ["c"]), "", {}, "windows of 2 characters, fewer .* set dataset.sequence_length=2"),
        (leaf_of(["ab"], ["c"]), "", {"test_fraction": 0.1}, "has a test split, leave it out"),
    ],
)
def test_files_that_cannot_be_used_are_named_in_one_line(tmp_path, make, path, settings, words):
    make(tmp_path)
    with pytest.raises(LearningError, match=words) as raised:
        load_dataset(source(tmp_path / path, **settings))
    assert "\n" not in str(raised.value)


def test_a_path_is_needed():
    with pytest.raises(LearningError, match="dataset.path is not set: name a text file"):
        load_dataset(DataSource("shakespeare"))


def test_characters_are_counted_once():
    windows = Windows(np.zeros(100, dtype=np.uint8), np.array([0, 1, 2, 50, 98 - LENGTH]), LENGTH)
    assert windows.characters(np.arange(5)) == len(covered(windows))
    assert windows.characters(np.array([1])) == LENGTH + 1


@pytest.mark.skipif(not PLAYS.is_file(), reason=f"{PLAYS} is not there")
def test_tiny_shakespeare():
    data = load_dataset(DataSource("shakespeare", str(PLAYS)))
    assert data.owners is not None
    assert isinstance(data.train, Windows)
    assert isinstance(data.test, Windows)
    assert data.owners.max() + 1 == 247
    assert data.input_shape == (80,)
    assert len(data.train.codes) + len(data.test.codes) > 1_000_000
    trained, tested = (
        {row.tobytes() for row in part.codes[part.starts[:, None] + np.arange(81)]}
        for part in (data.train, data.test)
    )
    assert trained.isdisjoint(tested)
