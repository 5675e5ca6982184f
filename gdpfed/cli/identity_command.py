"""``gdpfed identity``: make and check the signing keys with which clients authenticate each other."""

import argparse
import re
from collections.abc import Callable

from gdpfed.cli.command import Command, add_parser, cli_path
from gdpfed.decimal_numbers import decimal_number, whole_number
from gdpfed.errors import InputError
from gdpfed.files import PUBLIC_MODE

_ENTRY = re.compile(r"(?P<client>0|[1-9][0-9]{0,19})=(?P<key>\S+)")

DESCRIPTION = """\
Make and check the keys by which clients know each other (secagg.mode=active).

Every client makes an identity of its own and sends its public key to the
consortium, by a way on which nobody can swap it. The consortium has an
identity, too. With it, it signs the roster: which key is whose. Every client
gets the roster and the consortium's public key. So no server can put clients
of its own between them. With the same key it signs the app that nodes run."""

EXAMPLES = """\
gdpfed identity new node-0.key               make one; prints the public key
gdpfed identity roster roster.json --key consortium.key --from clients.txt
gdpfed identity verify roster.json --consortium 64af...
gdpfed identity sign-app app.fab --key consortium.key --roster roster.json"""

NEW_ROSTER = "A new client needs a new roster: sign it into a new file, and give it to all."

NEW_EXAMPLES = """\
gdpfed identity new node-0.key                of a client
gdpfed identity new consortium.key            of the consortium, which signs"""

SHOW_EXAMPLES = """\
gdpfed identity show node-0.key
gdpfed identity show node-0.key > node-0.identity    to send to the consortium"""

ROSTER_EXAMPLES = """\
gdpfed identity roster roster.json --key consortium.key --from clients.txt
gdpfed identity roster roster.json --key consortium.key --clients 0=5d1c..."""

VERIFY_EXAMPLES = """\
gdpfed identity verify roster.json --consortium 64af...
gdpfed identity verify roster.json --consortium consortium.identity"""

SIGN_EXAMPLES = """\
gdpfed identity sign-app app.fab --key consortium.key --roster roster.json
gdpfed identity sign-app app.fab --key consortium.key --roster roster.json \\
    --days 30 --allowed-overrides "run.* method=gdpfed privacy.budgets" """

VERIFY_APP_EXAMPLES = """\
gdpfed identity verify-app app.fab --consortium 64af...
gdpfed identity verify-app app.fab --consortium consortium.identity"""


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(required=True, metavar="ACTION")
    new = _action(actions, "new", _make_identity, "make an identity, and print its public key", NEW_EXAMPLES)
    new.add_argument("file", type=cli_path, metavar="FILE", help="new file for the secret key, mode 0600")
    show = _action(actions, "show", _print_public_key, "print the public key of an identity", SHOW_EXAMPLES)
    show.add_argument("file", type=cli_path, metavar="FILE", help="file that gdpfed identity new made")
    roster = _action(actions, "roster", _sign_roster, "sign the consortium's roster", ROSTER_EXAMPLES)
    roster.epilog = f"{roster.epilog}\n\n{NEW_ROSTER}"
    roster.add_argument("file", type=cli_path, metavar="OUT", help="new file for the signed roster")
    roster.add_argument(
        "--clients",
        nargs="+",
        default=[],
        metavar="ID=KEY",
        help="a client's number (its partition-id) and its public key, in hexadecimal or as a file",
    )
    roster.add_argument(
        "--key", type=cli_path, required=True, metavar="FILE", help="the consortium's identity, which signs"
    )
    roster.add_argument(
        "--from", type=cli_path, dest="listed", metavar="FILE", help="file with an ID=KEY on each line"
    )
    roster.add_argument(
        "--after",
        type=cli_path,
        metavar="FILE",
        help="the roster before: the new one has a higher number even if this clock is behind that of then",
    )
    roster.add_argument(
        "--number",
        type=whole_number,
        metavar="N",
        help="higher than that of every roster before, as nodes take none with a lower one than they have "
        "seen; the seconds since 1970 unless given",
    )
    verify = _action(actions, "verify", _verify, "check a roster, and print who is in it", VERIFY_EXAMPLES)
    verify.add_argument("file", type=cli_path, metavar="ROSTER", help="file with the signed roster")
    sign = _action(actions, "sign-app", _sign_app, "sign the bundle of an app", SIGN_EXAMPLES)
    sign.add_argument("file", type=cli_path, metavar="BUNDLE", help="file that flwr build made")
    sign.add_argument(
        "--key", type=cli_path, required=True, metavar="FILE", help="the consortium's identity, which signs"
    )
    sign.add_argument(
        "--roster", type=cli_path, required=True, metavar="FILE", help="the signed roster that it is for"
    )
    sign.add_argument(
        "--days",
        type=decimal_number,
        default=180,
        metavar="N",
        help="how long nodes begin runs of it (default: 180)",
    )
    sign.add_argument(
        "--allowed-overrides",
        default="*",
        metavar="WORDS",
        help="what its runs may override, as in the setting of a node (default: anything)",
    )
    verify_app = _action(
        actions, "verify-app", _verify_app, "check the signature of an app", VERIFY_APP_EXAMPLES
    )
    verify_app.add_argument("file", type=cli_path, metavar="BUNDLE", help="bundle with a signature beside it")
    for command in (verify, verify_app):
        command.add_argument(
            "--consortium",
            required=True,
            metavar="KEY",
            help="the consortium's public key, in hexadecimal or as a file with it",
        )


def _action(
    actions: "argparse._SubParsersAction[argparse.ArgumentParser]",
    name: str,
    act: Callable[[argparse.Namespace], None],
    words: str,
    examples: str,
) -> argparse.ArgumentParser:
    description = f"{words[0].upper()}{words[1:]}."
    made = add_parser(actions, name, words=words, description=description, examples=examples)
    made.set_defaults(act=act)
    return made


def _execute(options: argparse.Namespace) -> int:
    options.act(options)
    return 0


def _make_identity(options: argparse.Namespace) -> None:
    from gdpfed.identities import new_identity

    print(new_identity(options.file).public_bytes().hex())


def _print_public_key(options: argparse.Namespace) -> None:
    from gdpfed.identities import read_identity

    print(read_identity(options.file).public_bytes().hex())


def _sign_roster(options: argparse.Namespace) -> None:
    from gdpfed.identities import public_key_of, read_identity, read_roster, signed_roster, write_new

    consortium = read_identity(options.key)
    words: list[str] = [*options.clients]
    if options.listed:
        try:
            lines = options.listed.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(
                f"--from {options.listed} cannot be read ({error}): name a list of ID=KEY"
            ) from None
        words += [line.strip() for line in lines if line.strip() and not line.strip().startswith("#")]
    keys: dict[int, bytes] = {}
    for word in words:
        entry = _ENTRY.fullmatch(word)
        if entry is None:
            raise InputError(
                f"{word!r} is not ID=KEY: write a client's number and its public key, as in 0=5d1c..."
            )
        client_id = int(entry["client"])
        if client_id in keys:
            raise InputError(f"client {client_id} is named twice: keep one of its keys")
        keys[client_id] = public_key_of(entry["key"])
    if not keys:
        raise InputError("the roster has no client: write ID=KEY for each, or name a list by --from FILE")
    before = read_roster(options.after, consortium.public_bytes()).number if options.after else -1
    write_new(options.file, signed_roster(keys, consortium, options.number, after=before), PUBLIC_MODE)
    print(f"{options.file} has {len(keys)} clients, signed by consortium {consortium.public_bytes().hex()}")


def _verify(options: argparse.Namespace) -> None:
    from gdpfed.identities import public_key_of, read_roster

    roster = read_roster(options.file, public_key_of(options.consortium))
    print(f"{options.file} is signed by this consortium; digest {roster.digest.hex()}")
    print(f"number {roster.number}, signed on {roster.date or 'no date'}")
    for client_id, key in roster.items():
        print(f"{client_id}={key.hex()}")


def _sign_app(options: argparse.Namespace) -> None:
    from gdpfed.identities import read_identity, read_roster
    from gdpfed.signed_apps import read_file, sign_app, write_signature

    consortium = read_identity(options.key)
    number = read_roster(options.roster, consortium.public_bytes()).number
    bundle = read_file(options.file)
    signed = sign_app(
        bundle, consortium, number, days=options.days, allowed_overrides=options.allowed_overrides
    )
    print(f"{write_signature(options.file, signed, PUBLIC_MODE)}: {signed.statement}")


def _verify_app(options: argparse.Namespace) -> None:
    from gdpfed.identities import public_key_of
    from gdpfed.signed_apps import read_signed_bundle

    _, signed = read_signed_bundle(options.file, public_key_of(options.consortium))
    print(f"{options.file} is signed by this consortium: {signed.statement}")


COMMAND = Command(
    name="identity",
    help="make and check the keys by which clients know each other",
    description=DESCRIPTION,
    examples=EXAMPLES,
    add_arguments=_add_arguments,
    execute=_execute,
)
