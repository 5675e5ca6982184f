"""``python -m deploy.supernode``: run Flower's SuperNode with only those apps that the consortium signed.

A node's operator installs it. It decides before the app's code is handed to the SuperExec, in a process of
its own, so no app can change what it decides. Flower's own check (``--trusted-entities``) is on, with the
consortium's key alone. It knows no version, roster or expiry, and has no place for a check of ours. So one
function of Flower's is wrapped here; a Flower that has it no longer is not started. The same function asks
for messages, so here it asks more often while a run goes on. The function that waits for an app's answer is
wrapped as well, so that the node goes on where none can come. By which way it leaves the node's site, and
what it says of it: :mod:`deploy.proxy` and :mod:`deploy.connection`.
"""

import argparse
import inspect
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from logging import ERROR
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from flwr.app import Error, Message
from flwr.common.constant import ErrorCode, Status
from flwr.common.logger import log
from flwr.supercore.exit import ExitCode, flwr_exit
from flwr.supercore.fab import Fab
from flwr.supercore.object_store import ObjectStore
from flwr.supercore.run import Run
from flwr.supercore.version import package_version
from flwr.supernode import main as api
from flwr.supernode import start_client_internal as client
from flwr.supernode.cli.flower_supernode import flower_supernode
from flwr.supernode.fleet_http_client import FleetHttpClient
from flwr.supernode.nodestate.in_memory_nodestate import InMemoryNodeState

from deploy.connection import Connection, Way, check_roots, watched, with_health
from deploy.options import address, exit_status
from deploy.proxy import leave_by, read_proxy
from gdpfed.errors import InputError, LaunchError
from gdpfed.federation.node.allowed import check_overrides, refuse_overrides
from gdpfed.federation.node.connection_file import CONNECTION_FILE
from gdpfed.files import read_regular, write_whole
from gdpfed.identities import public_key_of, read_roster
from gdpfed.json_files import WRONG_FORM, read_json
from gdpfed.signed_apps import AppSignatureError, AppStatement, release_of, signed_in

SEEN_FILE = "seen.json"
ASK_SECONDS, MOST_SECONDS, AWAKE_SECONDS = 0.5, 3.0, 60.0
# In units of the time that the SuperLink took to answer.
PAUSE_PER_ANSWER = 20.0
_PULL, _PUSH, _INSERT = "_pull_and_store_message", "_push_messages", "_insert_message"
_REFUSAL = "FAB_VERIFICATION_ERROR"
_SEND, _CREATE, _SERVE = "_send", "create_app", "_start_supernode_http_api"
_TAKEN = ("get_run", "get_fab", "node_config", "trusted_entities")
_HELD = ("msg_store", "lock_msg_store")
UNFINISHED = (Status.PENDING, Status.STARTING, Status.RUNNING)
ENDED = Error(ErrorCode.CLIENT_APP_CRASHED, "the app has ended without an answer")


@dataclass(frozen=True)
class AppGate:
    """Decides which Flower apps a node runs: those that the consortium (all parties together) has signed.

    Attributes:
        consortium_key: whose signature an app must have.
        roster_file: the consortium's newest roster, as the node's operator has it.
        seen_file: the highest roster number, and the highest version of each app, of what was let in so far.
    """

    consortium_key: bytes
    roster_file: Path
    seen_file: Path

    def admit(
        self,
        bundle: bytes,
        verifications: Mapping[str, str],
        run_config: Mapping[str, Any],
        node_config: Mapping[str, Any],
    ) -> None:
        """Check a Flower app's signatures; raise InputError if they fail, else record the app.

        `bundle`, `verifications`: of the app, as the SuperLink sends them. `run_config`: what the run
        overrides. `node_config`: the operator's settings.
        """
        signed = signed_in(verifications, self.consortium_key).statement
        signed.check(bundle)
        refuse_overrides(run_config, signed.allowed_overrides, "the app's signature", AppSignatureError)
        check_overrides(node_config, run_config)
        self._refuse_older(signed)

    def _refuse_older(self, signed: AppStatement) -> None:
        """Raise AppSignatureError if the node has seen a newer app or member list (roster); else record both.

        The roster is the list of members for which the app was signed.
        """
        number, versions = self._seen()
        newest = max(number, read_roster(self.roster_file, self.consortium_key).number)
        if signed.roster_number < newest:
            raise AppSignatureError(
                f"version {signed.version} was signed for roster {signed.roster_number}, and this node has "
                f"seen {newest}: have the app signed for that roster with: gdpfed identity sign-app"
            )
        version = versions.get(signed.app, "0")
        if signed.release < release_of(version):
            raise AppSignatureError(
                f"version {signed.version} of {signed.app} is older than {version}, which this node has "
                "seen: run that one or a newer one"
            )
        seen = {"roster_number": signed.roster_number, "versions": {**versions, signed.app: signed.version}}
        try:
            write_whole(self.seen_file, json.dumps(seen).encode() + b"\n")
        except OSError as error:
            raise AppSignatureError(
                f"{self.seen_file} cannot be written: {error.strerror}; without it no app is run, since the "
                "version of the app cannot be recorded: free space there"
            ) from None

    def _seen(self) -> tuple[int, dict[str, str]]:
        """Return the highest recorded number of the member list (roster), and each app's highest version."""
        try:
            seen = read_json(read_regular(self.seen_file))
            number, versions = seen["roster_number"], dict(seen["versions"])
            for version in versions.values():
                release_of(version)
            if type(number) is not int:
                raise TypeError(f"{number!r} is not a number")
        except FileNotFoundError:
            return 0, {}
        except (OSError, *WRONG_FORM) as error:
            raise AppSignatureError(
                f"{self.seen_file}, which says what this node has seen, cannot be read ({error}): restore "
                "it, or remove it if the app is the newest one"
            ) from None
        return number, versions


def guarded(pull: Callable[..., int | None], gate: AppGate) -> Callable[..., int | None]:
    """Wrap Flower's function that receives a message, so that only apps with valid signatures run.

    One that it refuses comes without signatures. Flower then runs none of it and answers with our line.
    """

    def take(
        *, get_run: Callable[[int], Run], get_fab: Callable[[str, int], Fab], **others: Any
    ) -> int | None:
        runs: dict[int, Run] = {}

        def run_of(run_id: int) -> Run:
            return runs.setdefault(run_id, get_run(run_id))

        def fab_of(fab_hash: str, run_id: int) -> Fab:
            fab = get_fab(fab_hash, run_id)
            try:
                # Flower runs the bundle that the run names, of all that this node has ever been sent.
                if sha256(fab.content).hexdigest() != fab_hash:
                    raise AppSignatureError(
                        f"the SuperLink sent another app than the one with SHA-256 {fab_hash[:12]} that the "
                        "run names: ask the SuperLink's operator to submit the run again"
                    )
                gate.admit(
                    fab.content, fab.verifications, runs[run_id].override_config, others["node_config"]
                )
            except InputError as error:
                log(ERROR, "refused the app of run %d: %s", run_id, error)
                setattr(client, _REFUSAL, Error(ErrorCode.INVALID_FAB, str(error)))
                return Fab(fab.hash_str, fab.content, {})
            return fab

        return pull(get_run=run_of, get_fab=fab_of, **others)

    return take


def often(pull: Callable[..., int | None]) -> Callable[..., int | None]:
    """Wrap Flower's function that asks for messages, to ask more often for a minute after each message.

    Where it finds none, Flower waits for three seconds, in each exchange of a round. Here the pause is half a
    second, or longer where the SuperLink is slow to answer, as one is that many nodes ask.
    """
    awake_until = 0.0

    def ask(**words: Any) -> int | None:
        nonlocal awake_until
        while True:
            asked = time.monotonic()
            run_id = pull(**words)
            now = time.monotonic()
            if run_id is not None:
                awake_until = now + AWAKE_SECONDS
                return run_id
            if now >= awake_until:
                return None
            time.sleep(min(max(ASK_SECONDS, PAUSE_PER_ANSWER * (now - asked)), MOST_SECONDS))

    return ask


def answering(push: Callable[..., None]) -> Callable[..., None]:
    """Wrap Flower's function that waits for an app's answer, so that it ends where none can come.

    Flower answers for an app that has ended only if the app had taken its message. One that ends before that,
    since its machine was suspended while it started, kept the node from every later message.
    """

    def answer(*, state: InMemoryNodeState, object_store: ObjectStore, **others: Any) -> None:
        while not _replies(state):
            # An app hands over its reply before its task ends, so none can come after that.
            if not state.get_tasks(statuses=UNFINISHED) and not _replies(state):
                with state.lock_msg_store:
                    unanswered = [entry.message for entry in state.msg_store.values()]
                for message in unanswered:
                    log(ERROR, "the app has ended without an answer to %s", message.metadata.message_type)
                    getattr(client, _INSERT)(Message(ENDED, reply_to=message), state, object_store)
                break
            time.sleep(ASK_SECONDS)
        push(state=state, object_store=object_store, **others)

    return answer


def _replies(state: InMemoryNodeState) -> bool:
    """Whether a SuperNode holds a reply that waits to be sent."""
    with state.lock_msg_store:
        return any(entry.message.metadata.reply_to_message_id for entry in state.msg_store.values())


def check_flower() -> None:
    """Raise LaunchError if this version of Flower lacks functions that are wrapped here."""
    pull, start = getattr(client, _PULL, None), client.start_client_internal
    held = InMemoryNodeState.get_messages_legacy.__code__.co_names
    serve = flower_supernode.__globals__.get(_SERVE)
    missing = [
        name
        for name, there in (
            (_PULL, callable(pull) and _PULL in start.__code__.co_names),
            (_PUSH, callable(getattr(client, _PUSH, None)) and _PUSH in start.__code__.co_names),
            (_INSERT, callable(getattr(client, _INSERT, None))),
            *((name, name in held) for name in _HELD),
            (_REFUSAL, callable(pull) and _REFUSAL in pull.__code__.co_names),
            (_SEND, callable(getattr(FleetHttpClient, _SEND, None))),
            (_CREATE, callable(serve) and hasattr(api, _CREATE) and _CREATE in serve.__code__.co_names),
            *((name, callable(pull) and name in inspect.signature(pull).parameters) for name in _TAKEN),
        )
        if not there
    ]
    if missing:
        raise LaunchError(
            f"the SuperNode of Flower {package_version} has no {', '.join(missing)}: install the Flower of "
            "uv.lock, or read start_client_internal.py of this one and change deploy/supernode.py"
        )


def trusted_entities(consortium_key: bytes) -> str:
    """Return the content of Flower's ``--trusted-entities`` file, with this public key only, in YAML."""
    key = Ed25519PublicKey.from_public_bytes(consortium_key)
    public = key.public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode()
    return json.dumps({consortium_key.hex(): public})


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the SuperNode to its end; return the exit status, 2 if it is not started."""
    options, flower = parser().parse_known_args(arguments)
    return exit_status(lambda: start(options, flower))


def start(options: argparse.Namespace, flower: Sequence[str]) -> None:
    """Check this node's files, wrap Flower's functions for messages and health, and run the SuperNode."""
    check_flower()
    for file in (options.consortium, options.roster):
        if not file.is_file():
            raise LaunchError(
                f"{file} is missing, and this node checks the apps that it runs by it: put the consortium's "
                f"{file.name} into public/, and run python -m deploy.init again"
            )
    key = public_key_of(str(options.consortium))
    read_roster(options.roster, key)
    check_roots(options.root_certificates)
    proxy = read_proxy(options.proxy)
    leave_by(proxy, os.environ)
    way = Way(options.superlink, proxy, options.proxy, options.root_certificates)
    connection = Connection(way, options.seen / CONNECTION_FILE)
    gate = AppGate(key, options.roster, options.seen / SEEN_FILE)
    setattr(client, _PULL, often(guarded(getattr(client, _PULL), gate)))
    setattr(client, _PUSH, answering(getattr(client, _PUSH)))
    setattr(FleetHttpClient, _SEND, watched(getattr(FleetHttpClient, _SEND), connection))
    setattr(api, _CREATE, with_health(getattr(api, _CREATE), connection))
    with tempfile.TemporaryDirectory() as folder:
        trusted = Path(folder) / "trusted-entities.yaml"
        trusted.write_text(trusted_entities(key), encoding="ascii")
        words = ("--superlink", options.superlink, "--root-certificates", str(options.root_certificates))
        sys.argv = ["flower-supernode", *words, *flower, "--trusted-entities", str(trusted)]
        run_to_its_end(connection)


def run_to_its_end(connection: Connection) -> None:
    """Run Flower's SuperNode; raise SystemExit at its end, with 0 only if it was told to end.

    Flower's ends with 0 as well once its key is refused, and does not end at all, by the thread that serves
    its app, once its connection is over.
    """
    try:
        flower_supernode()
    except SystemExit as end:
        if connection.refused and not end.code:
            raise SystemExit(1) from None
        raise
    flwr_exit(ExitCode.SUPERNODE_CONNECTION_ERROR, connection.reason or "The connection has ended.")


def parser() -> argparse.ArgumentParser:
    """Return the parser of the options of ``deploy.supernode``; other options are flower-supernode's."""
    made = argparse.ArgumentParser(prog="python -m deploy.supernode", description=__doc__, allow_abbrev=False)
    made.add_argument("--consortium", type=Path, required=True, help="file with the consortium's public key")
    made.add_argument("--roster", type=Path, required=True, help="file with the consortium's signed roster")
    made.add_argument("--superlink", type=address, required=True, metavar="HOST:PORT", help="the gate")
    made.add_argument(
        "--root-certificates", type=Path, required=True, help="file with the certificates that it trusts"
    )
    made.add_argument(
        "--proxy",
        type=Path,
        required=True,
        help="file with the address of a proxy; an empty file means no proxy",
    )
    made.add_argument("--seen", type=Path, required=True, help="folder that keeps what this node has seen")
    return made


if __name__ == "__main__":
    raise SystemExit(main())
