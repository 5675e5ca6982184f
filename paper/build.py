"""Makes paper.pdf: writes tables and pictures into paper/build, and typesets the text with Typst.

python -m paper.build [--tables-only]
"""

import argparse
import sys
from pathlib import Path

from paper.pictures import write_pictures
from paper.tables import PROJECT, measured_tables

PAPER = PROJECT / "paper"
BUILD = PAPER / "build"


def main() -> None:
    """Write tables and pictures, then typeset the paper; exit with status 1 if Typst is not installed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tables-only", action="store_true", help="write tables and pictures, and end")
    options = parser.parse_args()
    write_sources(BUILD)
    if options.tables_only:
        return
    try:
        import typst
    except ImportError:
        sys.exit("Typst is not there: install the package typst, or run 'make paper', which does")
    typst.compile(PAPER / "paper.typ", output=BUILD / "paper.pdf", root=PROJECT)
    print(f"The paper is {BUILD / 'paper.pdf'}")


def write_sources(folder: Path) -> None:
    """Write the measured tables as CSV and the pictures as SVG."""
    folder.mkdir(parents=True, exist_ok=True)
    tables = measured_tables()
    for name, table in tables.items():
        (folder / f"{name}.csv").write_text(table.to_csv(), encoding="utf-8")
    write_pictures(tables, folder)


if __name__ == "__main__":
    main()
