"""scikit-learn's bundled handwritten digits: 1,797 grey pictures of 8x8 pixels in ten classes."""

import numpy as np

from gdpfed.learning.data.dataset import Dataset, Split
from gdpfed.learning.data.source import DataSource


def load(source: DataSource) -> Dataset:
    """A fifth, the same in every run, is the test split. Pixels 0 to 16 become [0, 1]."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    source.allow()
    pixels, labels = load_digits(return_X_y=True)
    images = (pixels / 16.0).astype(np.float32).reshape(-1, 1, 8, 8)
    x_train, x_test, y_train, y_test = train_test_split(
        images, labels.astype(np.int64), test_size=0.2, random_state=0, stratify=labels
    )
    return Dataset(Split(x_train, y_train), Split(x_test, y_test), num_classes=10)
