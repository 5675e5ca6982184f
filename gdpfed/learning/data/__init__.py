"""Data sets by name, one loader a file.

A loader is a function ``DataSource -> Dataset``. Another package adds one as an entry point of the group
``gdpfed.datasets``, which every process sees, or for one process with :func:`register`.
"""

from gdpfed.learning.data import (
    breast_cancer,
    cifar10,
    digits,
    fmnist,
    heart_disease,
    image_folder,
    npz,
    shakespeare,
    svhn,
    tabular,
)
from gdpfed.learning.data.dataset import Dataset, Examples, Labels, Pictures, Split
from gdpfed.learning.data.loading import DATASETS, Loader, load_dataset
from gdpfed.learning.data.source import DataSource
from gdpfed.learning.data.text import Windows

register = DATASETS.register

register("breast_cancer", breast_cancer.load)
register("cifar10", cifar10.load)
register("csv", tabular.load)
register("digits", digits.load)
register("fmnist", fmnist.load)
register("heart_disease", heart_disease.load)
register("image_folder", image_folder.load)
register("npz", npz.load)
register("shakespeare", shakespeare.load)
register("svhn", svhn.load)

__all__ = [
    "DATASETS",
    "DataSource",
    "Dataset",
    "Examples",
    "Labels",
    "Loader",
    "Pictures",
    "Split",
    "Windows",
    "load_dataset",
    "register",
]
