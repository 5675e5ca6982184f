"""``python -m deploy.units``: write a party's services as systemd units, for hosts without containers.

python -m deploy.units --nodes 6 --party server --superlink fl.example.org
python -m deploy.units --nodes 6 --party node-3 --superlink fl.example.org --epsilon 2.5 --data /srv/study

Each service has a unit, and a user of its own that sees no file of another's. The credentials are read by
systemd (``LoadCredential=``), from the directory that ``python -m deploy.init`` has filled.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from deploy.federation import TopologyError
from deploy.operate import federation_overrides
from deploy.options import absolute, add_federation, budget, exit_status, federation_of, host, port
from deploy.run_words import secagg_words, signed_words
from deploy.services import flower_environment, services, services_of
from deploy.topology import (
    CONSORTIUM_FILE,
    DATA,
    GATE,
    GUARD,
    HEALTH_PORT,
    LOOPBACK,
    PUBLIC,
    ROSTER_FILE,
    RUNS,
    SERVER,
    SERVER_SUPEREXEC,
    STATE,
    SUPERLINK,
    SUPERLINK_PORT,
    SUPERNODE_PORT,
    Service,
    credentials_of,
)
from gdpfed.runs.paths import FOLDERS

LOADED = "/run/credentials"
Folders = list[tuple[str, str]]
WRITABLE = "BindPaths"
TARGET, FEDERATION_SCRIPT = "gdpfed.target", "federation"
PROGRAMS = ".venv/bin"
CACHE = "/var/cache"
# What a service may not do, beside the files that it does not see.
CONFINED = (
    "NoNewPrivileges=yes",
    "CapabilityBoundingSet=",
    "ProtectSystem=strict",
    "ProtectHome=yes",
    "PrivateTmp=yes",
    "PrivateDevices=yes",
    "ProtectKernelTunables=yes",
    "ProtectKernelModules=yes",
    "ProtectControlGroups=yes",
    "ProtectProc=invisible",
    "RestrictNamespaces=yes",
    "RestrictSUIDSGID=yes",
    "RestrictAddressFamilies=AF_INET AF_INET6 AF_UNIX",
    "SystemCallArchitectures=native",
    "SystemCallFilter=@system-service",
    "SystemCallErrorNumber=EPERM",
    "UMask=0077",
)


@dataclass(frozen=True)
class Units:
    """One host's services as systemd units, each with its own port and with credentials in memory only.

    `root`: the store of `python -m deploy.init`. `superlink_host`, `superlink_port`: where nodes find the
    gate; the SuperLink itself is for this machine alone. `at_server`: whether this is its host.
    """

    root: Path
    superlink_host: str
    superlink_port: int
    at_server: bool
    variables: Mapping[str, str] = field(default_factory=dict)

    def host(self, service: str) -> str:
        return self.superlink_host if service == GATE and not self.at_server else LOOPBACK

    def listens_on(self, service: str) -> str:
        # Of all, the gate is for other hosts.
        return "0.0.0.0" if service == GATE else LOOPBACK  # noqa: S104

    def port(self, service: str) -> int:
        if service == GATE:
            return self.superlink_port
        if service == SUPERLINK:
            return self.superlink_port + 1
        number = service.removeprefix("supernode-").removeprefix("node-").removesuffix("-superexec")
        if not (number.isascii() and number.isdecimal()):
            return HEALTH_PORT - 2
        return (SUPERNODE_PORT if service.startswith("supernode-") else HEALTH_PORT) + 2 * int(number)

    def credential(self, service: str, file: str) -> str:
        return f"{LOADED}/{unit_of(service)}/{file}"

    def folder(self, service: str, name: str) -> str:
        return str(self.root / service / name)


def unit_of(service: str) -> str:
    """Return the name of the systemd unit of a service."""
    return f"gdpfed-{service}.service"


def user_of(name: str) -> str:
    """Return the system user of a service or, given a party's name, the system group of its services."""
    return f"gdpfed-{name}"


def unit(service: Service, place: Units, checkout: Path, data: str | None) -> str:
    """Return a service's systemd unit, by which the service sees only its own credentials and folders."""
    program, *arguments = service.command
    programs = checkout / PROGRAMS
    # For each folder the systemd directive, writable or read-only, and the path.
    folders = []
    for folder in service.folders:
        kind = WRITABLE if folder.writable else "BindReadOnlyPaths"
        path = place.folder(folder.of or service.name, folder.name)
        source = data if data is not None and folder.name == DATA else path
        folders.append((kind, path if source == path else f"{source}:{path}"))
    has_data = any(folder.name == DATA for folder in service.folders)
    of_server = (place.credential(service.name, name) for name in (ROSTER_FILE, CONSORTIUM_FILE))
    named = ":".join([*(path for _, path in folders), *of_server])
    # What root runs before the program starts.
    # The app of the same party reaches the guard's socket by the group.
    before = [
        f"ExecStartPre=+/bin/chmod 750 {place.folder(service.name, folder.name)}"
        for folder in service.folders
        if folder.name == GUARD and folder.writable
    ]
    # As root and before it is confined: a folder may be new, or come out of a backup. Where it is the
    # service's already, root leaves it alone: what lies in it is as the service wants it, links included.
    user, group = user_of(service.name), user_of(service.party)
    given = f"-exec /bin/chown --recursive {user}:{group} {{}} +"
    before += [
        f"ExecStartPre=+/usr/bin/find {path} -maxdepth 0 ! -user {user} {given}"
        for kind, path in folders
        if kind == WRITABLE
    ]
    environment = flower_environment() | {
        "FLWR_HOME": f"{CACHE}/{user_of(service.name)}",
        "HOME": f"{CACHE}/{user_of(service.name)}",
        "PATH": f"{programs}:/usr/bin:/bin",
        **({FOLDERS: named} if service.name == SERVER_SUPEREXEC else {}),
    }
    lines = (
        "[Unit]",
        f"Description=GDPFed+: {service.name} of {service.party}",
        "Wants=network-online.target",
        " ".join(["After=network-online.target", *(unit_of(each) for each in service.needs)]),
        f"PartOf={TARGET}",
        "StartLimitIntervalSec=0",
        "",
        "[Service]",
        f"User={user_of(service.name)}",
        f"Group={user_of(service.party)}",
        f"WorkingDirectory={checkout}",
        f"ExecStart={programs / program} {' '.join(map(_quoted, arguments))}",
        *before,
        # One that is refused ends, and is started again until it is accepted.
        "Restart=always",
        "RestartSec=5",
        *(f"Environment={_quoted(f'{name}={value}')}" for name, value in environment.items()),
        *_what_it_reaches(service, place, folders),
        # The party's group may read them, and the guard alone sees them.
        *([f"InaccessiblePaths=-{data}"] if data is not None and not has_data else []),
        f"MemoryMax={service.memory}",
        f"TasksMax={service.processes}",
        *CONFINED,
        "",
        "[Install]",
        f"WantedBy={TARGET}",
    )
    return "\n".join([*lines, ""])


def _what_it_reaches(service: Service, place: Units, folders: Folders) -> Iterator[str]:
    """Yield lines of a systemd unit that say which credentials, folders and hosts a service may access."""
    for name in service.credentials:
        yield f"LoadCredential={name}:{credentials_of(place.root, service.name) / name}"
    yield f"CacheDirectory={user_of(service.name)}"
    yield f"TemporaryFileSystem={place.root}:ro"
    yield from (f"{kind}={path}" for kind, path in folders)
    if service.offline:
        yield "PrivateNetwork=yes"
    # What it connects to is on this machine.
    if service.runs_app:
        yield from ("IPAddressDeny=any", "IPAddressAllow=localhost")


def _quoted(word: str) -> str:
    """Quote a word, so that systemd does not expand anything in it."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if escaped != word or " " in word else word


def _one_word(text: str) -> str:
    """Return an absolute path; raise an error if systemd units and shell scripts would have to quote it."""
    if absolute(text).split() != [text] or set(text) & set("\"'\\%:;&|<>()`*?"):
        raise argparse.ArgumentTypeError(
            f"{text!r} has a space or a mark that systemd or a shell reads otherwise: make a link "
            "without one (ln -s), and name that"
        )
    return text


TARGET_TEXT = """\
[Unit]
Description=GDPFed+

[Install]
WantedBy=multi-user.target
"""
OPERATE = """\
#!/bin/sh
# For the server's operator: register, nodes, flwr and train, as in: federation train run.num_rounds=5
what=$1
shift
case $what in
register) set -- --public {public} ;;
train) set -- --nodes {nodes} --runs {runs} {signed}-- {words} "$@" ;;
flwr) set -- -- "$@" ;;
esac
cd {checkout} && FLWR_HOME=${{FLWR_HOME:-$HOME/.gdpfed-flower}} exec .venv/bin/python -m deploy.operate \\
    "$what" --superlink {superlink} --ca {public}/superlink-ca.crt "$@"
"""


def users(mine: Sequence[Service], root: Path) -> str:
    """Return the content of the file from which systemd-sysusers makes the services' users and groups."""
    groups = "".join(f"g {user_of(party)} -\n" for party in sorted({each.party for each in mine}))
    return groups + "".join(f'u {user_of(each.name)} - "GDPFed+ {each.name}" {root}\n' for each in mine)


def write(options: argparse.Namespace) -> str:
    """Write the systemd units of a party; return instructions for its operator."""
    federation = federation_of(options)
    if options.epsilon is not None:
        if options.party == SERVER:
            raise TopologyError(
                f"--epsilon {options.epsilon:g} belongs to one node: name the node, as in --party node-3"
            )
        nodes = (
            replace(each, epsilon=options.epsilon) if each.name == options.party else each
            for each in federation.nodes
        )
        federation = replace(federation, nodes=tuple(nodes))
    place = Units(options.directory, options.superlink, options.port, at_server=options.party == SERVER)
    every = services(federation, place)
    mine = services_of(every, [options.party])
    files = {unit_of(each.name): unit(each, place, options.checkout, options.data) for each in mine}
    files |= {TARGET: TARGET_TEXT, f"gdpfed-{options.party}.conf": users(mine, options.directory)}
    if place.at_server:
        words = (*federation_overrides(federation), *secagg_words(federation, place))
        public = str(place.root / PUBLIC)
        signed = signed_words(public, place.folder(SUPERLINK, STATE)) if federation.signed_apps else ()
        files[FEDERATION_SCRIPT] = OPERATE.format(
            public=public,
            signed="".join(f"{word} " for word in signed),
            nodes=len(federation.nodes),
            runs=place.folder(SERVER_SUPEREXEC, RUNS),
            words=" ".join(words),
            checkout=options.checkout,
            superlink=f"{LOOPBACK}:{place.port(SUPERLINK)}",
        )
    try:
        options.into.mkdir(parents=True, exist_ok=True)
        for name, text in files.items():
            (options.into / name).write_text(text, encoding="utf-8")
            (options.into / name).chmod(0o755 if name == FEDERATION_SCRIPT else 0o644)
    except OSError as error:
        raise TopologyError(
            f"--into {options.into} cannot be written: {error.strerror}; name another one"
        ) from None
    return "\n".join(str(options.into / name) for name in files)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the systemd units of a party; return the exit status: 0 done, 2 bad input."""
    layout = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="python -m deploy.units", description=__doc__, formatter_class=layout
    )
    add_federation(parser)
    parser.add_argument("--party", required=True, help="whose host this is: server or node-<i>")
    parser.add_argument(
        "--superlink", type=host, required=True, metavar="HOST", help="host name of the SuperLink"
    )
    parser.add_argument("--port", type=port, default=SUPERLINK_PORT, help="port of the SuperLink")
    parser.add_argument(
        "--epsilon", type=budget, help="this node's budget; else the one of --budgets in turn"
    )
    parser.add_argument("--data", type=_one_word, metavar="DIR", help="the folder of this party's data")
    for name, default, what in (
        ("directory", "/srv/gdpfed", "the directory of python -m deploy.init"),
        ("checkout", "/opt/gdpfed", "a checkout of the project with its .venv"),
    ):
        parser.add_argument(
            f"--{name}",
            type=lambda text: Path(_one_word(text)),
            default=Path(default),
            metavar="DIR",
            help=f"{what} (default: %(default)s)",
        )
    parser.add_argument("--into", type=Path, default=Path("units"), metavar="DIR", help="where to write them")
    options = parser.parse_args(arguments)
    return exit_status(lambda: print(write(options)))


if __name__ == "__main__":
    raise SystemExit(main())
