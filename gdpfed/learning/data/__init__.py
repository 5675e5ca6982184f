"""The loaders of data sets, each registered by the name of its data set.

A loader is a function ``DataSource -> Dataset``. Another package adds one as an entry point of the group
``gdpfed.datasets``, which every process sees, or for one process with :func:`register`.
"""

from gdpfed.learning.data import arrays, image_folder, in_memory, shakespeare, tabular
from gdpfed.learning.data.dataset import Dataset, Examples, Pictures, Split
from gdpfed.learning.data.published_pictures import cifar10, digits, fmnist, svhn
from gdpfed.learning.data.published_tables import breast_cancer, heart_disease
from gdpfed.learning.data.source import DATASETS, DataSource, Loader, load_dataset
from gdpfed.learning.data.text import Windows

register = DATASETS.register

register("breast_cancer", breast_cancer)
register("cifar10", cifar10)
register("csv", tabular.load)
register("digits", digits)
register("fmnist", fmnist)
register("heart_disease", heart_disease)
register("image_folder", image_folder.load)
register("npz", arrays.load)
register(in_memory.NAME, in_memory.not_here)
register("shakespeare", shakespeare.load)
register("svhn", svhn)

__all__ = [
    "DATASETS",
    "DataSource",
    "Dataset",
    "Examples",
    "Loader",
    "Pictures",
    "Split",
    "Windows",
    "load_dataset",
    "register",
]
