"""Tables of `gdpfed reproduce` in a document: what is missing is trained, what is there is read.

python -m benchmarks.reproduced EXPERIMENT [--seeds 3] [--output runs/reproduce]
"""

import sys
import textwrap
from pathlib import Path

from benchmarks.harness import (
    CONSOLE,
    DOC_COLUMNS,
    PROJECT,
    present_command,
    provenance,
    read_options,
    with_tables,
)
from gdpfed.cli import main as gdpfed
from gdpfed.extras.experiments.presentation import TABLE_FILE


def tables_of(markdown: str) -> str:
    """The tables of an experiment's page, with the notes that follow each."""
    lines, kept, within = markdown.splitlines(), list[str](), False
    for line in lines:
        within = line.startswith(("|", "**", "(")) or (within and not line.startswith(("!", "Made with")))
        if within:
            kept.append(line)
    return "\n".join(kept).strip()


def main() -> None:
    """Reproduce one experiment, and write its tables."""
    options = read_options(__doc__, overrides=True, seeds=3, output="runs/reproduce")
    if len(options.overrides) != 1:
        sys.exit("name one experiment, as in h2fdp-figure5; gdpfed reproduce --list names them all")
    name, output = options.overrides[0], Path(options.output)
    status = gdpfed(
        ["reproduce", name, "--seeds", str(options.seeds), "--output", str(output), "--jobs", "1"]
    )
    if status:
        sys.exit(status)
    page = (PROJECT / output / name / TABLE_FILE).read_text("utf-8")
    text = f"{tables_of(page)}\n\n{textwrap.fill(provenance(), DOC_COLUMNS)}"
    CONSOLE.print(text, markup=False, soft_wrap=True)
    if options.write is not None:
        document = with_tables(options.write.read_text("utf-8"), present_command(), [text])
        options.write.write_text(document, "utf-8")


if __name__ == "__main__":
    main()
