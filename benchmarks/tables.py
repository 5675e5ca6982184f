"""Measures seconds and memory that gdpfed takes to check and to load a large random table, beside pandas.

Each reader runs in a process of its own; its peak memory is counted above that of the imports.
pandas.read_csv only makes a data frame: it does not check ranges and does not scale numbers.

python -m benchmarks.tables --rows 1000000 --columns 30
"""

import json
import subprocess
import sys
import tempfile
from pathlib import Path
from time import perf_counter

import numpy as np
import pyarrow as pa
from pyarrow import csv

from benchmarks.harness import publish, read_options, three
from gdpfed.learning.data.declaration import read_columns
from gdpfed.report.console import Table

CHUNK = 100_000
FLOAT_BYTES, LABEL_BYTES = 4, 8
READERS = {
    "gdpfed check": "check_table(table, read_columns(table.with_name('columns.yaml')))",
    "load to train": "load_dataset(DataSource('csv', str(table)))",
    "load at a node": "check_own(OwnData(table))",
    "pandas.read_csv": "pandas.read_csv(table)",
}
PROGRAM = """\
import json, resource, sys
from pathlib import Path
from time import perf_counter
import pandas
from gdpfed.learning.data import DataSource, load_dataset
from gdpfed.learning.data.declaration import read_columns
from gdpfed.learning.data.own import OwnData, check_own
from gdpfed.learning.data.table_check import check_table
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
table, before, began = Path(sys.argv[1]), peak(), perf_counter()
found = {act}
print(json.dumps([perf_counter() - began, peak() - before]))
"""


def write_table(folder: Path, rows: int, columns: int) -> Path:
    """Write a random table and the declaration of its columns: a label, two categories, and numbers."""
    generator, path = np.random.default_rng(0), folder / "table.csv"
    numbers = [f"x{at}" for at in range(columns - 3)]
    declared = "".join(f"  {name}: [0, 100]\n" for name in numbers)
    (folder / "columns.yaml").write_text(
        "label: {column: y, classes: ['0', '1']}\ncategorical: {sex: [M, F], ward: [a, b, c, d]}\n"
        f"numeric:\n{declared}"
    )
    with path.open("wb") as file:
        for begin in range(0, rows, CHUNK):
            count = min(CHUNK, rows - begin)
            cells: dict[str, object] = {
                name: np.round(generator.uniform(0, 100, count), 3) for name in numbers
            }
            cells["sex"] = np.array(["M", "F"])[generator.integers(0, 2, count)]
            cells["ward"] = np.array([*"abcd"])[generator.integers(0, 4, count)]
            cells["y"] = generator.integers(0, 2, count)
            csv.write_csv(pa.table(cells), file, csv.WriteOptions(include_header=not begin))
    return path


def measured(table: Path, act: str) -> tuple[float, float]:
    """Read a table once in a new process; return the seconds and the peak memory in MiB."""
    program = PROGRAM.replace("{act}", act)
    done = subprocess.run(  # noqa: S603 - this program
        [sys.executable, "-c", program, str(table)], check=True, capture_output=True, text=True
    )
    taken, memory = json.loads(done.stdout)
    return float(taken), float(memory)


def main() -> None:
    """Write a large random table, read it with each reader, and show seconds and memory."""
    options = read_options(__doc__, overrides=False, rows=1_000_000, columns=30)
    with tempfile.TemporaryDirectory() as folder:
        began = perf_counter()
        table = write_table(Path(folder), options.rows, options.columns)
        size = table.stat().st_size / 2**20
        print(f"{size:.0f} MiB written in {three(perf_counter() - began)} s")
        inputs = read_columns(table.with_name("columns.yaml")).num_inputs
        kept = options.rows * (inputs * FLOAT_BYTES + LABEL_BYTES) / 2**20
        rows = []
        for name, act in READERS.items():
            taken, memory = measured(table, act)
            rows.append((name, three(taken), f"{memory:.0f}"))
    title = f"A CSV file of {options.rows:,} rows and {options.columns} columns, {size:.0f} MiB"
    note = f"A training keeps {kept:.0f} MiB of numbers: {inputs} inputs of 32 bits and a label of 64 a row."
    publish([Table(title, ("", "seconds", "peak memory (MiB)"), rows, note)], options.write)


if __name__ == "__main__":
    main()
