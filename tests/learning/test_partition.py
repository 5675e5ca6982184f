"""Tests of partitions: each training example goes to one client, and the split depends on a seed only."""

import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from gdpfed.errors import LearningError
from gdpfed.learning.data import Dataset, DataSource, Split, load_dataset
from gdpfed.learning.data.client_partition import Partition
from gdpfed.learning.data.named_partitions import PARTITIONS
from gdpfed.learning.task import Task

DIGITS = DataSource("digits")
ALL = {
    "iid": Partition("iid", 30, seed=3),
    "dirichlet": Partition("dirichlet", 30, seed=3, dirichlet_alpha=0.3),
    "labels": Partition("labels", 30, seed=3),
    "shards": Partition("shards", 30, seed=3, shards=2),
    "natural": Partition("natural", 30, seed=3),
}


def data_with_owners(clients=30):
    digits = load_dataset(DIGITS)
    owners = np.random.default_rng(0).permutation(np.arange(len(digits.train)) % clients)
    return Dataset(digits.train, digits.test, digits.num_classes, owners)


@pytest.mark.parametrize("name", ALL)
def test_everything_is_given_out_once_and_no_test_example_is(name):
    data = data_with_owners()
    parts = [ALL[name].indices(data, client_id) for client_id in range(30)]
    assert sorted(np.concatenate(parts)) == list(range(len(data.train)))
    held = {row.tobytes() for part in parts for row in data.train.take(part).x}
    assert held.isdisjoint(row.tobytes() for row in data.test.take(np.arange(len(data.test))).x)


@pytest.mark.parametrize("name", ["iid", "dirichlet", "labels", "shards"])
def test_another_seed_gives_another_split(name):
    data, here = load_dataset(DIGITS), ALL[name]
    other = replace(here, seed=4)
    assert not np.array_equal(here.indices(data, 0), other.indices(data, 0))


def test_iid_sizes_differ_by_at_most_one():
    data = load_dataset(DIGITS)
    sizes = [len(Partition("iid", 360, 3).indices(data, client_id)) for client_id in range(360)]
    assert set(sizes) == {3, 4}
    many = Partition("iid", 3000, 0)
    assert sum(len(many.indices(data, client_id)) for client_id in range(3000)) == len(data.train)


def test_labels_leave_every_client_one_label_or_two_neighbours():
    data = load_dataset(DIGITS)
    parts = [ALL["labels"].indices(data, client_id) for client_id in range(30)]
    held = [sorted(set(data.train.y[part].tolist())) for part in parts]
    assert held == sorted(held)
    assert {label for labels in held for label in labels} == set(range(10))
    assert all(max(labels) - min(labels) <= 1 for labels in held)
    assert {len(part) for part in parts} <= {len(data.train) // 30, len(data.train) // 30 + 1}


def test_shards_are_about_as_many_labels_and_as_many_examples_for_all():
    data, split = load_dataset(DIGITS), ALL["shards"]
    parts = [split.indices(data, client_id) for client_id in range(30)]
    held = [len(set(data.train.y[part].tolist())) for part in parts]
    # A shard may lie across the border of two labels.
    assert max(held) <= 4
    assert np.mean(held) < 3
    sizes = [len(part) for part in parts]
    assert split.largest(data) == max(sizes) <= min(sizes) + 2


def test_a_small_alpha_leaves_a_client_few_classes():
    data = load_dataset(DIGITS)

    def classes(alpha):
        split = Partition("dirichlet", 20, 0, alpha)
        return np.mean([len(np.unique(data.train.y[split.indices(data, k)])) for k in range(20)])

    assert classes(0.05) < 5 < 9 < classes(100.0)


def test_dirichlet_shares_have_the_distributions_mean_and_variance():
    """The fractions of a class that clients get have the mean and variance of the Dirichlet distribution."""
    n, alpha, repeats, count = 20, 0.5, 20, 1000
    x = np.zeros((count, 1), dtype=np.float32)
    train, test = (Split(x[:n], np.zeros(n, dtype=np.int64)) for n in (count, 1))
    data = Dataset(train, test, 1, label_kind="classes")
    shares = [
        [
            len(Partition("dirichlet", n, seed, alpha).indices(data, client_id)) / count
            for client_id in range(n)
        ]
        for seed in range(repeats)
    ]
    assert np.mean(shares) == pytest.approx(1 / n)
    # Its relative standard error over 20 draws is 10 % (measured on 5,000 such estimates): three of them.
    assert np.var(shares) == pytest.approx((n - 1) / (n**2 * (n * alpha + 1)), rel=0.3)


def test_another_process_finds_the_same_split():
    """A new process computes the same split from the same seed."""
    program = (
        "from gdpfed.learning.data import DataSource, load_dataset\n"
        "from gdpfed.learning.data.client_partition import Partition\n"
        "split = Partition('dirichlet', 30, seed=3, dirichlet_alpha=0.3)\n"
        "print(split.indices(load_dataset(DataSource('digits')), 7).tolist())"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    here = ALL["dirichlet"].indices(load_dataset(DIGITS), 7)
    assert answer.stdout.strip() == str(here.tolist())
    task = Task(DIGITS, "linear", "dirichlet", 30, 3, 0.3)
    np.testing.assert_array_equal(task.client_indices(7), here)


def test_natural_takes_the_largest_clients_in_the_order_of_the_data():
    digits = load_dataset(DIGITS)
    owners = np.repeat([0, 1, 2, 3], [400, 37, 500, 500])
    data = Dataset(digits.train, digits.test, 10, owners)
    three = Partition("natural", 3, seed=0)
    assert [len(three.indices(data, client_id)) for client_id in range(3)] == [400, 500, 500]
    np.testing.assert_array_equal(three.indices(data, 1), np.arange(437, 937))
    with pytest.raises(
        LearningError, match="num_clients=5 is more than the 4 clients .*num_clients=4 or fewer"
    ):
        Partition("natural", 5, seed=0).indices(data, 0)


@pytest.mark.parametrize(
    ("split", "client_id", "words"),
    [
        (Partition("iid", 9, 0), 9, "client 9 is not in the split"),
        (Partition("iid", 9, 0), -1, "client -1 is not in the split"),
        (Partition("natural", 9, 0), 0, "natural needs data that has clients of its own"),
        (Partition("dirichlet", 1438, 0, 1.0), 0, "num_clients=1438 is more than the 1437 examples"),
        (
            Partition("shards", 500, 0, shards=3),
            0,
            "are 1,500 shards, but there are 1,437 examples: choose at most 2",
        ),
        (Partition("shards", 9, 0), 0, "partition=shards with dataset.dirichlet_alpha=None"),
        (Partition("dirichlet", 9, 0), 0, "partition=dirichlet with dataset.dirichlet_alpha=None"),
        (Partition("even", 9, 0), 0, "partition=even"),
    ],
)
def test_partitions_that_do_not_fit(split, client_id, words):
    with pytest.raises(LearningError, match=words):
        split.indices(load_dataset(DIGITS), client_id)


def test_a_task_survives_the_message():
    source = DataSource("image_folder", "/data/pictures", image_size=32, channels=1, test_fraction=0.1)
    task = Task(source, "mlp", "dirichlet", 9, 1, 0.5, (("hidden_units", 8), ("other", 0.5)))
    again = Task.from_json(task.to_json())
    assert again == task
    assert hash(again) == hash(task)


@pytest.mark.parametrize("name", ["exponential", "linear", "pathological", "square"])
def test_partitions_of_flwr_datasets_are_chosen_by_name(name):
    data, clients = load_dataset(DIGITS), 10 if name == "pathological" else 5
    options = (("classes", 3.0),) if name == "pathological" else ()
    split = Partition(name, clients, 0, options=options)
    parts = [split.indices(data, client_id) for client_id in range(clients)]
    given, sizes = np.concatenate(parts), [len(part) for part in parts]
    assert len(np.unique(given)) == len(given)
    assert split.largest(data) == max(sizes)
    if name == "pathological":
        assert {len(set(data.train.y[part].tolist())) for part in parts} == {3}
    else:
        assert sizes == sorted(sizes)
        assert sizes[-1] > 1.5 * sizes[0]
        assert len(given) == len(data.train)


def test_a_file_says_whose_every_example_is(tmp_path):
    data, file = load_dataset(DIGITS), tmp_path / "owners.txt"
    names = np.array(["north", "south", "east"])[np.arange(len(data.train)) % 3]
    file.write_text("\n".join(names) + "\n")
    split = Partition("owners", 3, 0, options=(("path", str(file)),))
    assert [set(names[split.indices(data, client)]) for client in range(3)] == [
        {"east"},
        {"north"},
        {"south"},
    ]
    assert sum(len(split.indices(data, client)) for client in range(3)) == len(data.train)
    for changed, words in (
        (replace(split, num_clients=4), "makes 3 parts for dataset.num_clients=4"),
        (replace(split, options=(("path", str(tmp_path / "none")),)), "No such file"),
        (
            replace(split, options=()),
            "owners needs path: set dataset.partition_options={path: owners.txt}",
        ),
        (
            replace(split, options=(*split.options, ("paths", 1))),
            "paths of dataset.partition=owners is not known",
        ),
        (replace(split, name="pathological", options=(("classes", 2.5),)), "a whole number from 1 to 10"),
        (replace(split, name="none"), "none is not known: use dirichlet, exponential, iid"),
        (replace(split, name="iid"), "partition_options=.* has no meaning with dataset.partition=iid"),
    ):
        with pytest.raises(LearningError, match=words):
            changed.indices(data, 0)
    file.write_text("north\n")
    with pytest.raises(LearningError, match="does not have one line for each example"):
        replace(split, seed=1).indices(data, 0)


def test_options_of_a_partition_may_be_ordinary_parameters(monkeypatch):
    def mine(data, num_clients, seed, every=1):
        return [range(client, len(data.train), every * num_clients) for client in range(num_clients)]

    data = load_dataset(DIGITS)
    monkeypatch.setattr(PARTITIONS, "_items", {**PARTITIONS._items, "mine": mine})
    split = Partition("mine", 3, 0, options=(("every", 2),))
    assert split.indices(data, 1).tolist() == [*range(1, len(data.train), 6)]
    with pytest.raises(LearningError, match="each of dataset.partition=mine is not known: use every"):
        replace(split, options=(("each", 2),)).indices(data, 1)


@pytest.mark.parametrize("parts", [[[0, 1], [1]], [[0, 0], []], [[-1], [0]], [[10**6], []]])
def test_a_partition_that_gives_an_example_to_two_is_refused(monkeypatch, parts):
    monkeypatch.setattr(PARTITIONS, "_items", {**PARTITIONS._items, "mine": lambda data, n, seed: parts})
    with pytest.raises(LearningError, match="mine gives an example to two clients, or one that does not"):
        Partition("mine", 2, 0).indices(load_dataset(DIGITS), 0)
