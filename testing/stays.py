"""A made-up table with the columns of the eICU demo's ``patient.csv``; it contains no real patients."""

import csv
from pathlib import Path

import numpy as np

from gdpfed.learning.data.declaration import PUBLISHED, read_columns

HEADINGS = (
    *("uniquepid", "gender", "age", "admissionheight", "admissionweight", "hospitalid", "region"),
    *("acutephysiologyscore", "apachescore", "actualhospitalmortality", "predictedhospitalmortality"),
)
REGIONS = ("Midwest", "Northeast", "South", "West")


def write_stays(path: Path, per_hospital: int = 3, hospitals: int | None = None) -> Path:
    """Write made-up hospital stays for some or all declared hospitals; at most one in five is a readmission.

    The sicker of every ten die. Of each hospital the region is known; one stay in ten has no outcome, one no
    region, and one a score of -1. Returns the path.
    """
    declared = read_columns(Path(f"{PUBLISHED}eicu-hospitals")).party
    names = declared.values[:hospitals] if declared else ()
    rng, rows = np.random.default_rng(0), list[list[str]]()
    for number, hospital in enumerate(names):
        for stay in range(per_hospital):
            count = len(rows)
            score = int(rng.integers(20, 120))
            dies = score > 100 or count % 40 == 7
            same = stay and count % 5 == 0
            rows.append(
                [
                    rows[-1][0] if same else f"p{count}",
                    *(("Female", "Male")[count % 2], str(int(rng.integers(20, 90)))),
                    *(str(150 + count % 40), str(50 + count % 60), hospital),
                    "" if count % 10 == 3 else REGIONS[number % 4],
                    *(str(-1 if count % 10 == 5 else score), str(score + 15)),
                    "" if count % 10 == 9 and stay else ("EXPIRED" if dies else "ALIVE"),
                    "0.5",
                ]
            )
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([HEADINGS, *rows])
    return path
