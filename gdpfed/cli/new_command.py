"""``gdpfed new``: ask five questions and write a file of settings from the answers."""

import argparse
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gdpfed.cli.command import Command, cli_path
from gdpfed.decimal_numbers import decimal_number, whole_number
from gdpfed.errors import ConfigError, InputError

FILE = Path("gdpfed.yaml")
EXAMPLES = """\
gdpfed new                            asks, and writes gdpfed.yaml
gdpfed new mine.yaml --yes            asks nothing: the defaults
gdpfed new heart.yaml --yes --data csv --path /data/heart --clients 6
gdpfed new heart.yaml --yes --protect record --budgets 1,3"""
HEADER = """\
# Settings of a run, written by gdpfed new. 'gdpfed plan {path}' says what they promise,
# 'gdpfed simulate {path}' trains, and 'gdpfed settings' lists all that can be added here.
"""
DATA = {
    "digits": "handwritten digits, which are bundled",
    "csv": "your own table, of CSV, Parquet, Excel or a query, or a folder with one for each party",
    "npz": "your own arrays",
    "image_folder": "your own pictures, a folder a class",
}
PROTECTED = {
    "client": "one participant with all it holds, as one phone",
    "record": "one record of a participant, as one patient",
}


@dataclass(frozen=True)
class Question:
    """A question to the user, with a default and the valid answers; the answer goes into the settings file.

    `read`: turns an answer into a value; ValueError for one that cannot be. `choices`: with words for each.
    """

    key: str
    words: str
    default: Callable[[dict[str, Any]], str]
    read: Callable[[str], Any]
    choices: dict[str, str]


def _one_of(choices: dict[str, str]) -> Callable[[str], str]:
    def read(text: str) -> str:
        if text not in choices:
            raise ValueError(f"choose {', '.join(choices)}")
        return text

    return read


def _path(text: str) -> str:
    if not text:
        raise ValueError("give the path of the data, a file or a folder")
    path = Path(text).expanduser().absolute()
    if not path.exists():
        raise ValueError(f"{path} does not exist: give the path of the data")
    return str(path)


def _count(text: str) -> int:
    number = whole_number(text)
    if number < 1:
        raise ValueError("give a whole number of at least 1")
    return number


def _budgets(text: str) -> list[float]:
    try:
        found = sorted({decimal_number(word.strip()) for word in text.split(",")})
    except ValueError:
        found = []
    if not found or not 0 < found[0] <= found[-1] < float("inf"):
        raise ValueError("give numbers above 0 with commas between them, as in 1,3,6")
    return found


def _clients_by_default(answers: dict[str, Any]) -> str:
    from conf.load import compose_options
    from conf.option_files import set_client_count

    dataset = compose_options([f"dataset={answers['data']}"]).dataset
    dataset.path = answers.get("path")
    try:
        set_client_count(dataset)
    except InputError:
        return ""  # The data do not say it, so somebody has to.
    return str(dataset.num_clients)


def _budgets_by_default(answers: dict[str, Any]) -> str:
    from conf.load import compose_options

    budgets = compose_options([f"dataset={answers['data']}"]).dataset.budgets
    return ",".join(f"{each:g}" for each in budgets)


QUESTIONS = (
    Question("data", "What is to be learnt from?", lambda _: "digits", _one_of(DATA), DATA),
    Question("path", "Where is it?", lambda _: "", _path, {}),
    Question("clients", "How many participants are there?", _clients_by_default, _count, {}),
    Question("protect", "What is protected?", lambda _: "client", _one_of(PROTECTED), PROTECTED),
    Question("budgets", "Which budgets (epsilon), strictest first?", _budgets_by_default, _budgets, {}),
)


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file",
        nargs="?",
        type=cli_path,
        default=FILE,
        metavar="FILE",
        help=f"to write (default {FILE})",
    )
    parser.add_argument("--yes", action="store_true", help="ask nothing: what is not said is as by default")
    parser.add_argument("--data", metavar="NAME", help=f"what is learnt from: {', '.join(DATA)}")
    parser.add_argument("--path", metavar="PATH", help="where data of your own are")
    parser.add_argument("--clients", metavar="N", help="how many participants there are")
    parser.add_argument("--protect", metavar="UNIT", help="what is protected: client or record")
    parser.add_argument("--budgets", metavar="A,B", help="epsilon of each group of participants")


def _execute(options: argparse.Namespace) -> int:
    path: Path = options.file
    if path.is_dir():
        raise ConfigError(f"{path} is a folder: name a file in it, such as {path / FILE}")
    if path.suffix not in (".yaml", ".yml"):
        raise ConfigError(f"{path} must be a YAML file: name it {path.with_suffix('.yaml')}")
    if path.exists():
        raise ConfigError(f"{path} is there already: name another file, or remove it")
    if not options.yes and not sys.stdin.isatty():
        raise InputError("gdpfed new asks its questions on a terminal: in a script give --yes and options")
    import yaml

    import gdpfed.methods  # noqa: F401 - hands the methods to conf
    from conf.load import load
    from gdpfed.cli.settings_file import settings_in
    from gdpfed.files import save_whole
    from gdpfed.methods import make_method

    answers = _answers(options)
    # The file has Hydra's form: options of groups below `defaults`, then values by group and key.
    by_record = answers["protect"] == "record"
    chosen = {"privacy": "record_level", "method": "dp_sum"} if by_record else {"method": "gdpfed_star"}
    defaults = [{"dataset": answers["data"]}, *({group: option} for group, option in chosen.items())]
    data: dict[str, Any] = {"num_clients": answers["clients"]}
    if "path" in answers:
        data["path"] = answers["path"]
    values = {"defaults": defaults, "dataset": data, "privacy": {"budgets": answers["budgets"]}}
    text = HEADER.format(path=path) + yaml.safe_dump(values, sort_keys=False)
    try:
        save_whole(path, text.encode())
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}; name another file") from None
    try:
        make_method(load(settings_in(path)))
    except InputError:
        path.unlink()
        raise
    print(f"{path} is written. Next: gdpfed plan {path}, then gdpfed simulate {path}")
    return 0


def _answers(options: argparse.Namespace) -> dict[str, Any]:
    """Collect the answers for the settings file, from options or from the user.

    Raises InputError: an option that cannot be, or one that lacks with ``--yes``.
    """
    answers: dict[str, Any] = {}
    for question in QUESTIONS:
        said = getattr(options, question.key)
        if question.key == "path" and answers["data"] == "digits":
            if said is not None:
                raise InputError(
                    f"--path {said}: the digits are bundled; leave it out, or choose --data for your own"
                )
            continue
        default = question.default(answers)
        if said is None and not options.yes:
            answers[question.key] = _asked(question, default)
            continue
        try:
            answers[question.key] = question.read(default if said is None else said)
        except ValueError as error:
            option = " ".join([f"--{question.key}", *([said] if said else [])])
            raise InputError(f"{option}: {error}") from None
    return answers


def _asked(question: Question, default: str) -> Any:
    """Ask one question on the terminal until the answer is valid; an empty answer takes the default."""
    print(question.words)
    for choice, words in question.choices.items():
        print(f"  {choice:14}{words}")
    while True:
        try:
            said = input(f"[{default}] " if default else "> ").strip()
        except EOFError:
            raise InputError(
                "the input ended before the last question, so no file is written: answer every "
                "question, or give --yes and answers as options"
            ) from None
        try:
            return question.read(said or default)
        except ValueError as error:
            print(f"  {error}")


COMMAND = Command(
    name="new",
    help="ask five questions, and write a file with settings of your own",
    description="Ask what is learnt from, by how many, what is protected and with which budgets, and write "
    "the answers as a file with settings, in the form of Hydra's. Every command that takes overrides takes "
    "such a file; an override beside it goes before.",
    examples=EXAMPLES,
    add_arguments=_add_arguments,
    execute=_execute,
)
