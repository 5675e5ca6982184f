"""``gdpfed predict``: predict for new records with a finished model, or export it to ONNX."""

import argparse
import csv
import sys
from collections.abc import Iterable
from io import StringIO

from gdpfed.cli.command import TABLES, Command, cli_path, refuse_existing
from gdpfed.decimal_numbers import counted
from gdpfed.errors import ConfigError, printable

EXAMPLES = """\
gdpfed predict runs/mine/model new.csv > predicted.csv
gdpfed predict runs/mine/model new.csv --keep patient --output predicted.csv
gdpfed predict runs/mine/model --onnx model.onnx"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("model", type=cli_path, metavar="MODEL", help="the folder 'model' of a finished run")
    parser.add_argument(
        "table", type=cli_path, nargs="?", metavar="TABLE", help=f"{TABLES}; a label is not needed"
    )
    parser.add_argument(
        "--keep",
        action="append",
        default=[],
        metavar="COLUMN",
        help="a column of the table to write, too, such as a number of the patient; may be given again",
    )
    parser.add_argument(
        "--output", type=cli_path, metavar="FILE.csv", help="write a new file, not to the screen"
    )
    parser.add_argument(
        "--skip",
        action="store_true",
        help="leave out rows with values that are not as declared, and name their lines",
    )
    parser.add_argument("--onnx", type=cli_path, metavar="FILE.onnx", help="write the model as ONNX")


def _execute(options: argparse.Namespace) -> int:
    from gdpfed.files import save_output
    from gdpfed.learning.prediction import load_model

    if options.table is None and options.onnx is None:
        raise ConfigError("name a TABLE to predict for, or --onnx FILE.onnx to write the model")
    if options.output is not None and not options.output.parent.is_dir():
        raise ConfigError(
            f"--output {options.output}: the folder {options.output.parent} does not exist: make it first"
        )
    for path, option in ((options.output, "--output"), (options.onnx, "--onnx")):
        if path is not None:
            refuse_existing(path, option)
    model = load_model(options.model)
    if options.onnx is not None:
        from gdpfed.learning.onnx_export import save_onnx

        print(f"The model is in {options.onnx}: {save_onnx(model, options.onnx)}")
    if options.table is None:
        return 0
    kept, found = model.predict_file(
        options.table,
        options.keep,
        say=lambda line: print(f"gdpfed: {printable(line)}", file=sys.stderr),
        skip=options.skip,
    )
    table: dict[str, Iterable[object]] = {**kept, **found.to_table()}
    text = StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(table)
    writer.writerows(zip(*table.values(), strict=True))
    if options.output is None:
        sys.stdout.write(text.getvalue())
    else:
        save_output(options.output, text.getvalue().encode())
        names = ", ".join(table)
        rows = counted(len(found.labels), "row")
        print(f"The predictions of {rows} are in {options.output}, as {names}")
    return 0


COMMAND = Command(
    name="predict",
    help="use the model of a finished run on new records",
    description=(
        "Read the folder 'model' of a finished run and predict for every row of a table, whose columns are "
        "those that the model was trained with, so the table that it was trained with will do. A column that "
        "is missing is refused by its name, others are not read. It writes CSV: the predicted class and the "
        "probability of each class, or the predicted number."
    ),
    examples=EXAMPLES,
    add_arguments=_add_arguments,
    execute=_execute,
)
