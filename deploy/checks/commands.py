"""Every command is one that its program takes, at the version that is installed here."""

import argparse
import io
from collections.abc import Callable, Iterator
from contextlib import redirect_stderr
from importlib.metadata import version
from typing import Any

from deploy import control, init

Parser = Callable[[], argparse.ArgumentParser]


def command_problems(tree: dict[str, Any]) -> Iterator[str]:
    """Commands with unknown, missing or deprecated options, and images of another version of Flower."""
    for name, service in tree["services"].items():
        command: list[str] = [*service["entrypoint"], *service.get("command", [])]
        program, words = command[0], command[1:]
        parser = _parser_of(program, words)
        if parser is None:
            yield f"{name}: {program} is no program that is known here"
            continue
        arguments = words[2:] if program == "python" else words
        yield from (f"{name}: {problem}" for problem in _argument_problems(parser, arguments))
        yield from _image_problems(name, program, service)


def _parser_of(program: str, words: list[str]) -> argparse.ArgumentParser | None:
    from flwr.supercore.cli.flower_superexec import _parse_args
    from flwr.superlink.cli.flower_superlink import _parse_args_run_superlink
    from flwr.supernode.cli.flower_supernode import _parse_args_run_supernode

    parsers: dict[str, Parser] = {
        "flower-superexec": _parse_args,
        "flower-superlink": _parse_args_run_superlink,
        "flower-supernode": _parse_args_run_supernode,
        "python -m deploy.control": control.parser,
        "python -m deploy.init": init.parser,
    }
    key = program if program != "python" else " ".join([program, *words[:2]])
    return parsers[key]() if key in parsers else None


def _argument_problems(parser: argparse.ArgumentParser, words: list[str]) -> Iterator[str]:
    refusal = io.StringIO()
    try:
        with redirect_stderr(refusal):
            parser.parse_args(words)
    except SystemExit:
        yield refusal.getvalue().strip().splitlines()[-1]
    # argparse takes the beginning of an option for the option, and hides some that it still takes.
    options = {option: action.help or "" for action in _actions(parser) for option in action.option_strings}
    for option in (word.partition("=")[0] for word in words if word.startswith("--") and word != "--"):
        if option not in options:
            yield f"{option} is no option"
        elif options[option] == argparse.SUPPRESS or "deprecated" in options[option].lower():
            yield f"{option} is deprecated"


def _actions(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """The parser's own actions and those of its commands."""
    for action in parser._actions:
        yield action
        if isinstance(action, argparse._SubParsersAction):
            for command in action.choices.values():
                yield from _actions(command)


def _image_problems(name: str, program: str, service: dict[str, Any]) -> Iterator[str]:
    flower = version("flwr")
    build = service.get("build")
    if build is not None:
        base = build["args"].get("FLOWER_VERSION")
        if base != flower:
            yield f"{name}: is built on Flower {base}, not on the installed {flower}"
    elif service["image"] != f"flwr/{program.removeprefix('flower-')}:{flower}":
        yield f"{name}: image {service['image']} is not flwr/{program.removeprefix('flower-')}:{flower}"
