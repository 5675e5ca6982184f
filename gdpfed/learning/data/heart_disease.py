"""UCI heart disease: 920 patients of four hospitals, who have heart disease or not.

By A. Janosi, W. Steinbrunn, M. Pfisterer and R. Detrano (1988). The hospitals are the parties.
"""

from pathlib import Path

from gdpfed.errors import LearningError
from gdpfed.learning.data.columns import DROP, KEEP, Columns
from gdpfed.learning.data.dataset import Dataset
from gdpfed.learning.data.declaration import columns_of
from gdpfed.learning.data.source import DataSource
from gdpfed.learning.data.table_rows import Table, rows_of, texts_of
from gdpfed.learning.data.tabular import Party, dataset_of

HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")
FILE = "processed.{}.data"
COLUMNS = (
    *("age", "sex", "cp", "trestbps", "chol", "fbs", "restecg", "thalach", "exang", "oldpeak"),
    *("slope", "ca", "thal", "num"),
)
DECLARATION = {
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


def load(source: DataSource) -> Dataset:
    """303, 294, 123 and 200 patients; with ``complete_rows`` the 303, 261, 46 and 130 that lack nothing.

    Raises:
        LearningError: files are missing or hold something else.
    """
    source.allow("path", "test_fraction", "complete_rows")
    root = Path(source.path or "").expanduser()
    missing = [FILE.format(name) for name in HOSPITALS if not (root / FILE.format(name)).is_file()]
    if source.path is None or missing:
        raise LearningError(
            f"dataset.path={source.path} lacks {missing[0] if missing else FILE}: name the folder with UCI's "
            f"files {', '.join(FILE.format(name) for name in HOSPITALS)}"
        )
    rows = {"incomplete_rows": DROP if source.complete_rows else KEEP}
    columns = columns_of(DECLARATION | rows, "the declaration of heart_disease")
    parties = []
    for name in HOSPITALS:
        path = root / FILE.format(name)
        table = _read(path, columns)
        parties.append(Party(name, rows_of(table, columns, str(path), shared_out=False)))
    return dataset_of(parties, columns, source.test_fraction, str(root))


def _read(path: Path, columns: Columns) -> Table:
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise LearningError(f"{path} cannot be read: {error}") from None
    rows = [line.split(",") for line in lines if line.strip()]
    for number, row in enumerate(rows, start=1):
        if len(row) != len(COLUMNS):
            raise LearningError(f"{path}: row {number} has {len(row)} values; it must have {len(COLUMNS)}")
    table = {name: [row[place] for row in rows] for place, name in enumerate(COLUMNS)}
    return texts_of(table, columns, written=True)
