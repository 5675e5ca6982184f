"""scikit-learn's bundled table of breast cancer: 569 cell samples, malignant or benign.

From the UCI repository, by W. H. Wolberg, W. N. Street and O. L. Mangasarian (1995). The ranges are those
that the documentation of the table publishes, so that no row is looked at to scale another.
"""

import numpy as np

from gdpfed.learning.data.columns import Columns, Numeric
from gdpfed.learning.data.dataset import Dataset, Split
from gdpfed.learning.data.source import DataSource

NUM_PARTIES = 6
TEST_FRACTION = 0.2
RANGES = {
    "mean radius": (6.981, 28.11),
    "mean texture": (9.71, 39.28),
    "mean perimeter": (43.79, 188.5),
    "mean area": (143.5, 2501.0),
    "mean smoothness": (0.053, 0.163),
    "mean compactness": (0.019, 0.345),
    "mean concavity": (0.0, 0.427),
    "mean concave points": (0.0, 0.201),
    "mean symmetry": (0.106, 0.304),
    "mean fractal dimension": (0.05, 0.097),
    "radius error": (0.112, 2.873),
    "texture error": (0.36, 4.885),
    "perimeter error": (0.757, 21.98),
    "area error": (6.802, 542.2),
    "smoothness error": (0.002, 0.031),
    "compactness error": (0.002, 0.135),
    "concavity error": (0.0, 0.396),
    "concave points error": (0.0, 0.053),
    "symmetry error": (0.008, 0.079),
    "fractal dimension error": (0.001, 0.03),
    "worst radius": (7.93, 36.04),
    "worst texture": (12.02, 49.54),
    "worst perimeter": (50.41, 251.2),
    "worst area": (185.2, 4254.0),
    "worst smoothness": (0.071, 0.223),
    "worst compactness": (0.027, 1.058),
    "worst concavity": (0.0, 1.252),
    "worst concave points": (0.0, 0.291),
    "worst symmetry": (0.156, 0.664),
    "worst fractal dimension": (0.055, 0.208),
}
"""Least and most of every column, as scikit-learn's ``DESCR`` lists them; they become -1 and 1."""
COLUMNS = Columns(
    label="diagnosis",
    classes=(("0",), ("1",)),
    class_names=("malignant", "benign"),
    label_range=None,
    numeric=tuple(Numeric(name, *bounds) for name, bounds in RANGES.items()),
    categorical=(),
)


def load(source: DataSource) -> Dataset:
    """Class 0 is malignant, 1 benign. Six parties and a test split are drawn once, by position alone."""
    from sklearn.datasets import load_breast_cancer

    source.allow()
    values, labels = load_breast_cancer(return_X_y=True)
    low, high = np.array([*RANGES.values()]).T
    inputs = (2 * (np.clip(values, low, high) - low) / (high - low) - 1).astype(np.float32)
    order = np.random.default_rng(0).permutation(len(labels))
    everything = Split(inputs, labels.astype(np.int64))
    owners = np.empty(len(labels), dtype=np.int64)
    owners[order] = np.arange(len(labels)) * NUM_PARTIES // len(labels)
    # Every fifth of the drawn order, so that every party has its share of the test split.
    testing = np.zeros(len(labels), dtype=np.bool_)
    testing[order[:: round(1 / TEST_FRACTION)]] = True
    train, test = np.flatnonzero(~testing), np.flatnonzero(testing)
    return Dataset(
        everything.take(train),
        everything.take(test),
        num_classes=2,
        owners=owners[train],
        test_owners=owners[test],
        owner_names=tuple(f"party {number}" for number in range(NUM_PARTIES)),
        columns=COLUMNS,
    )
