"""``gdpfed settings``: list every setting with its default and its purpose."""

import argparse
from collections.abc import Iterator
from textwrap import fill
from typing import TYPE_CHECKING

from gdpfed.cli.command import HELP_WIDTH, Command

if TYPE_CHECKING:
    from conf.settings import SettingGroup

EXAMPLES = """\
gdpfed settings                       the groups, and how much is in each
gdpfed settings --all                 every setting
gdpfed settings privacy               a group: its options and its settings
gdpfed settings noise                 by a word of its name or description
gdpfed settings dataset=svhn dataset  with what another option recommends"""
OWNERS_NAMED = 4
LINE_WIDTH = 80


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "words", nargs="*", metavar="WORD", help="a group, a part of a name or description, or group=option"
    )
    parser.add_argument("--all", action="store_true", help="list every setting of every group")


def _execute(options: argparse.Namespace) -> int:
    import gdpfed.methods  # noqa: F401 - hands the methods to conf
    from conf.option_files import groups
    from conf.settings import counted_groups, search, setting_groups

    if not options.words and not options.all:
        lines = []
        for name, (num_options, num_settings) in counted_groups().items():
            choice = f"{num_options} options, " if num_options > 1 else ""
            lines.append(f"{name:12}{f'{choice}{num_settings} settings':26}{ABOUT.get(name, '')}")
        lines += ["", "gdpfed settings GROUP lists one, a word of a name searches, --all lists all."]
        print("\n".join(lines))
        return 0
    choices = [word for word in options.words if "=" in word]
    words = [word for word in options.words if "=" not in word]
    # A group that is named is all there is to look through; the methods take a second to be read.
    named = [word for word in words if word in groups()]
    pages = ["\n".join(_page(group)) for group in search(setting_groups(choices, named), words)]
    print("\n\n".join(pages))
    return 0


ABOUT = {
    "dataset": "data, model, clients",
    "training": "how clients train",
    "method": "who trains when; what comes of the sums",
    "privacy": "budgets, and how they are kept",
    "secagg": "masks, so that the server sees sums alone",
    "run": "rounds, seed, folder, evaluation",
    "simulation": "how a simulation uses the machine",
}
"""What each group is for."""


def _page(group: "SettingGroup") -> Iterator[str]:
    for option, words in group.options.items():
        chosen = "  (the defaults below)" if option == group.chosen and group.name != "method" else ""
        yield f"{group.name}={option}{chosen}"
        if words:
            yield _indented(words)
    if group.options:
        yield ""
    for setting in group.settings:
        few = 0 < len(setting.owners) <= OWNERS_NAMED
        owners = f"of {', '.join(setting.owners)}" if few else ""
        facts = [setting.kind, f"as {setting.source} says" if setting.source else "", owners]
        said = "; ".join(fact for fact in facts if fact)
        line = f"{setting.key}={setting.default}" + (f"  ({said})" if said else "")
        yield fill(line, HELP_WIDTH, subsequent_indent="    ") if len(line) > LINE_WIDTH else line
        if setting.words:
            yield _indented(setting.words)


def _indented(words: str) -> str:
    return fill(words, HELP_WIDTH, initial_indent="    ", subsequent_indent="    ")


COMMAND = Command(
    name="settings",
    help="list every setting with its default and what it is for",
    description=(
        "List settings as they are given on the command line, with their defaults. Several words narrow the "
        "list: what is shown has them all."
    ),
    examples=EXAMPLES,
    add_arguments=_add_arguments,
    execute=_execute,
)
