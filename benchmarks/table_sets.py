"""Prepares tables of records (hospital data, census data, random rows), on which models are compared.

Tables that do not come with the project are read from a folder; a table that is missing there is left out.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

ROWS = 4_000
"""Of the drawn table, in all."""
ADULT_ROWS = 4
"""Adult is seven times as long as the other tables together: every row of this many is taken."""
HEART, EICU = "heart-disease", "eicu-demo/patient.csv"
EICU_COLUMNS = """\
label: {column: actualhospitalmortality, classes: {alive: [ALIVE], expired: [EXPIRED]}}
numeric:
  age: {range: [0, 100], missing: 90, missing_marks: ["> 89"]}
  admissionheight: {range: [100, 220]}
  admissionweight: {range: [30, 250]}
  acutephysiologyscore: {range: [0, 200]}
  apachescore: {range: [0, 250]}
categorical: {gender: [Female, Male]}
party: {column: region, values: [Midwest, Northeast, South, West]}
"""
ADULT_NAMES = (
    *("age", "workclass", "fnlwgt", "education", "years", "marital", "occupation", "relationship", "race"),
    *("sex", "gain", "loss", "hours", "country", "income"),
)
ADULT_COLUMNS = """\
label: {column: income, classes: {below: ["<=50K"], above: [">50K"]}}
numeric: {age: [17, 90], years: [1, 16], gain: [0, 20000], loss: [0, 3000], hours: [1, 99]}
categorical:
  workclass: [Private, Self-emp-not-inc, Self-emp-inc, Federal-gov, Local-gov, State-gov, Without-pay,
    Never-worked]
  marital: [Married-civ-spouse, Divorced, Never-married, Separated, Widowed, Married-spouse-absent,
    Married-AF-spouse]
  occupation: [Tech-support, Craft-repair, Other-service, Sales, Exec-managerial, Prof-specialty,
    Handlers-cleaners, Machine-op-inspct, Adm-clerical, Farming-fishing, Transport-moving, Priv-house-serv,
    Protective-serv, Armed-Forces]
  relationship: [Wife, Own-child, Husband, Not-in-family, Other-relative, Unmarried]
  race: [White, Asian-Pac-Islander, Amer-Indian-Eskimo, Other, Black]
  sex: [Female, Male]
missing: ["?"]
test: {column: part, values: [test]}
party: {column: site, values: ["0", "1", "2", "3", "4", "5"]}
"""
DRAWN_COLUMNS = """\
label: {column: ill, classes: {healthy: ["0"], ill: ["1"]}}
numeric: {a: [-1, 1], b: [-1, 1], c: [-1, 1], d: [-1, 1], e: [-1, 1], f: [-1, 1]}
party: {column: site, values: ["0", "1", "2", "3"]}
"""


def table_sets(folder: Path, data: Path, adult: Path | None) -> Mapping[str, tuple[str, ...]]:
    """Return the settings that load each available table; some tables are written into a folder first.

    `data`: the folder with `HEART` and `EICU`. `adult`: that with UCI's adult.data and adult.test.
    """
    sets: dict[str, tuple[str, ...]] = {"breast cancer": ("dataset=breast_cancer",)}
    if (data / HEART).is_dir():
        sets["heart disease"] = ("dataset=heart_disease", f"dataset.path={data / HEART}")
    if (data / EICU).is_file():
        with (data / EICU).open(encoding="utf-8", newline="") as file:
            patients = list(csv.DictReader(file))
        sets["eICU"] = _written(folder / "eicu", EICU_COLUMNS, _eicu(patients))
    if adult is not None:
        sets["Adult"] = _written(folder / "adult", ADULT_COLUMNS, _adult(adult))
    sets["drawn"] = _written(folder / "drawn", DRAWN_COLUMNS, _drawn())
    return sets


def _written(folder: Path, columns: str, rows: Iterable[Mapping[str, object]]) -> tuple[str, ...]:
    """Write a table and the declaration of its columns; return the settings that load the table."""
    folder.mkdir()
    (folder / "columns.yaml").write_text(columns, encoding="utf-8")
    kept = list(rows)
    with (folder / "rows.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(kept[0]))
        writer.writeheader()
        writer.writerows(kept)
    settings = ("dataset=csv", f"dataset.path={folder / 'rows.csv'}")
    return settings if "\ntest:" in columns else (*settings, "dataset.test_fraction=0.34")


def _eicu(patients: Sequence[Mapping[str, str]]) -> Iterator[dict[str, str]]:
    """Yield hospital stays of eICU with a known outcome, without columns that reveal the outcome."""
    scores = ("acutephysiologyscore", "apachescore")
    kept = ("actualhospitalmortality", "age", "admissionheight", "admissionweight", *scores, "gender")
    for stay in patients:
        if stay["region"] and stay["actualhospitalmortality"]:
            row = {name: stay[name] for name in (*kept, "region")}
            yield row | {name: "" for name in scores if row[name].startswith("-")}


def _adult(folder: Path) -> Iterator[dict[str, str]]:
    """Yield every `ADULT_ROWS`-th row of the Adult census table, without three of its columns."""
    for part in ("data", "test"):
        lines = (folder / f"adult.{part}").read_text("utf-8").splitlines()
        rows = [[cell.strip() for cell in line.split(",")] for line in lines]
        known = [row for row in rows if len(row) == len(ADULT_NAMES)]
        for number, row in enumerate(known[::ADULT_ROWS]):
            named = dict(zip(ADULT_NAMES, row, strict=True))
            gone = {"fnlwgt", "education", "country"}
            values = {name: value.rstrip(".") for name, value in named.items() if name not in gone}
            yield values | {"part": "test" if part == "test" else "", "site": str(number % 6)}


def _drawn() -> Iterator[dict[str, object]]:
    """Yield random rows; a label depends on the product of two columns and the absolute value of a third."""
    generator = np.random.default_rng(1)
    values = generator.uniform(-1, 1, (ROWS, 6))
    score = 4 * np.sign(values[:, 0] * values[:, 1]) + 4 * (np.abs(values[:, 2]) > 0.5) - 2
    ill = generator.uniform(size=ROWS) < 1 / (1 + np.exp(-score))
    for number, (row, label) in enumerate(zip(values.round(4), ill, strict=True)):
        yield dict(zip("abcdef", row, strict=True)) | {"ill": int(label), "site": number % 4}
