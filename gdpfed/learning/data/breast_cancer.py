"""scikit-learn's bundled table of breast cancer: 569 cell samples, malignant or benign.

From the UCI repository, by W. H. Wolberg, W. N. Street and O. L. Mangasarian (1995). The ranges are those
that the documentation of the table publishes, so that no row is looked at to scale another.
"""

import numpy as np

from gdpfed.learning.data.dataset import Dataset, Split
from gdpfed.learning.data.source import DataSource

NUM_PARTIES = 6
TEST_FRACTION = 0.2
RANGES = (
    (6.981, 28.11),  # radius (mean)
    (9.71, 39.28),  # texture (mean)
    (43.79, 188.5),  # perimeter (mean)
    (143.5, 2501.0),  # area (mean)
    (0.053, 0.163),  # smoothness (mean)
    (0.019, 0.345),  # compactness (mean)
    (0.0, 0.427),  # concavity (mean)
    (0.0, 0.201),  # concave points (mean)
    (0.106, 0.304),  # symmetry (mean)
    (0.05, 0.097),  # fractal dimension (mean)
    (0.112, 2.873),  # radius (standard error)
    (0.36, 4.885),  # texture (standard error)
    (0.757, 21.98),  # perimeter (standard error)
    (6.802, 542.2),  # area (standard error)
    (0.002, 0.031),  # smoothness (standard error)
    (0.002, 0.135),  # compactness (standard error)
    (0.0, 0.396),  # concavity (standard error)
    (0.0, 0.053),  # concave points (standard error)
    (0.008, 0.079),  # symmetry (standard error)
    (0.001, 0.03),  # fractal dimension (standard error)
    (7.93, 36.04),  # radius (worst)
    (12.02, 49.54),  # texture (worst)
    (50.41, 251.2),  # perimeter (worst)
    (185.2, 4254.0),  # area (worst)
    (0.071, 0.223),  # smoothness (worst)
    (0.027, 1.058),  # compactness (worst)
    (0.0, 1.252),  # concavity (worst)
    (0.0, 0.291),  # concave points (worst)
    (0.156, 0.664),  # symmetry (worst)
    (0.055, 0.208),  # fractal dimension (worst)
)
"""Least and most of every column, as scikit-learn's ``DESCR`` lists them; they become -1 and 1."""


def load(source: DataSource) -> Dataset:
    """Class 0 is malignant, 1 benign. Six parties and a test split are drawn once, by position alone."""
    from sklearn.datasets import load_breast_cancer

    source.allow()
    values, labels = load_breast_cancer(return_X_y=True)
    low, high = np.array(RANGES).T
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
    )
