"""Writes the tables of an experiment of `gdpfed reproduce` into a document; trains only missing runs.

python -m benchmarks.reproduced EXPERIMENT [OVERRIDE ...] [--datasets A,B] [--rows A,B] [--rounds N]
    [--seeds 3] [--jobs 1]

`--rounds`: in place of the experiment's own.
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
    """Return the tables in an experiment's Markdown page, each with its notes."""
    lines, kept, within = markdown.splitlines(), list[str](), False
    for line in lines:
        within = line.startswith(("|", "**", "(")) or (within and not line.startswith(("!", "Made with")))
        if within:
            kept.append(line if line.startswith("|") else textwrap.fill(line, DOC_COLUMNS))
    return "\n".join(kept).strip()


def main() -> None:
    """Reproduce one experiment, print its tables, and write them into a document if one is given."""
    options = read_options(
        __doc__, overrides=True, datasets="", rows="", rounds=0, seeds=3, jobs=1, output="runs/reproduce"
    )
    names = [word for word in options.overrides if "=" not in word]
    if len(names) != 1:
        sys.exit("name one experiment, as in h2fdp-figure5; gdpfed reproduce --list names them all")
    (name,), output = names, Path(options.output)
    chosen = [f"--{key}={getattr(options, key)}" for key in ("datasets", "rows", "seeds", "jobs", "output")]
    if options.rounds:
        chosen.append(f"--rounds={options.rounds}")
    status = gdpfed(["reproduce", *options.overrides, *chosen])
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
