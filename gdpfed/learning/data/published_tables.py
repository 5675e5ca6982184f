"""Published tables: scikit-learn's breast cancer, and UCI's heart disease of four hospitals.

Breast cancer: 569 cell samples, malignant or benign, by W. H. Wolberg, W. N. Street and O. L. Mangasarian
(1995). Its ranges are those that the documentation publishes, so that no row is looked at to scale another.
Heart disease: 920 patients, by A. Janosi, W. Steinbrunn, M. Pfisterer and R. Detrano (1988).
"""

from pathlib import Path

import numpy as np

from gdpfed.errors import LearningError
from gdpfed.learning.data.cells import table_of
from gdpfed.learning.data.columns import DROP, KEEP, Columns, Numeric
from gdpfed.learning.data.dataset import Dataset, Split
from gdpfed.learning.data.declaration import columns_of
from gdpfed.learning.data.source import DataSource
from gdpfed.learning.data.table_rows import rows_of
from gdpfed.learning.data.tabular import Party, dataset_of

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
BREAST_CANCER_COLUMNS = Columns(
    label="diagnosis",
    classes=(("0",), ("1",)),
    class_names=("malignant", "benign"),
    label_range=None,
    numeric=tuple(Numeric(name, *bounds) for name, bounds in RANGES.items()),
    categorical=(),
)


def breast_cancer(source: DataSource) -> Dataset:
    """Load scikit-learn's breast cancer data, with random but fixed test examples and six data owners."""
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
        columns=BREAST_CANCER_COLUMNS,
    )


HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
FILE_NAME = "processed.{}.data"
FILE_COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"),
    *("slope", "ca", "thal", "num"),
)
HEART_DISEASE = {
    "label": {"column": "num", "classes": {"healthy": ["0"], "disease": ["1", "2", "3", "4"]}},
    "numeric": {
        "age": ["20", "80"],
        "sex": ["0", "1"],
        "trestbps": {"range": ["80", "200"], "missing": "120"},
        # Switzerland wrote 0 where nobody measured; it becomes 100.
        "chol": {"range": ["100", "600"], "missing": "200"},
        "fbs": {"range": ["0", "1"], "missing": "0"},
        "thalach": {"range": ["60", "210"], "missing": "150"},
        "exang": {"range": ["0", "1"], "missing": "0"},
        "oldpeak": {"range": ["-3", "7"], "missing": "0"},
    },
    "categorical": {"cp": ["1", "2", "3", "4"], "restecg": ["0", "1", "2"]},
    "missing": ["?"],
}
"""Ranges are what such figures are between in adults, and what stands for a missing one is its usual value.

``slope``, ``ca`` and ``thal`` are left out, as FLamby (du Terrail et al., 2022) leaves them out: three of the
hospitals lack most of them.
"""


def heart_disease(source: DataSource) -> Dataset:
    """Load UCI's heart disease data of four hospitals, with 303, 294, 123 and 200 patients.

    ``complete_rows`` keeps only the 303, 261, 46 and 130 patients without a missing value.

    Raises LearningError: files are missing or hold something else.
    """
    source.allow("path", "test_fraction", "complete_rows")
    root = Path(source.path or "").expanduser()
    names = [FILE_NAME.format(name) for name in HOSPITALS]
    missing = [name for name in names if not (root / name).is_file()]
    if source.path is None or missing:
        fault = " is not set" if source.path is None else f"={source.path} lacks {missing[0]}"
        raise LearningError(f"dataset.path{fault}: name the folder with UCI's files {', '.join(names)}")
    of_rows = {"incomplete_rows": DROP if source.complete_rows else KEEP}
    columns = columns_of(HEART_DISEASE | of_rows, "the declaration of heart_disease")
    import pyarrow as pa

    parties = []
    for name in HOSPITALS:
        path = root / FILE_NAME.format(name)
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except OSError as error:
            raise LearningError(f"{path} cannot be read: {error.strerror}; make it readable") from None
        except UnicodeDecodeError as error:
            raise LearningError(f"{path} is damaged ({error}): get the file from UCI again") from None
        rows = [line.split(",") for line in lines if line.strip()]
        for number, row in enumerate(rows, start=1):
            if len(row) != len(FILE_COLUMNS):
                raise LearningError(
                    f"{path}: row {number} has {len(row)} values; it must have {len(FILE_COLUMNS)}"
                )
        texts = {
            column: pa.array([row[at] for row in rows], pa.string()) for at, column in enumerate(FILE_COLUMNS)
        }
        table = table_of(texts, columns, str(path))
        parties.append(Party(name, rows_of(table, columns, str(path), shared_out=False)))
    return dataset_of(parties, columns, source.test_fraction, str(root))
