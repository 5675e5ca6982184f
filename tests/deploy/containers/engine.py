"""Run Docker commands in tests: Compose projects, their containers, and the images that they need."""

import json
import os
import re
import shutil
import subprocess
import tempfile
from base64 import b64decode
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from deploy.description import Tree, described
from testing.project import PROJECT

PROGRAMS = ("supernode", "superexec")
WAIT_SECONDS = 900.0
SUITE, BASE = "trixie", "gdpfed-standin/debian"
STAND_IN = Path(__file__).with_name("standin.Dockerfile")
OPEN, SHUT = "open", "shut"
REACH = f"""
import socket, sys
try:
    socket.create_connection((sys.argv[1], int(sys.argv[2])), 4)
    print("{OPEN}")
except OSError:
    print("{SHUT}")
"""


def app_image() -> Tree:
    """Return the name of the app's image, and how Compose builds that image from this checkout."""
    service = described()["services"]["init"]
    return {"image": service["image"], "build": service["build"]}


(FLOWER_VERSION,) = re.findall(r":([0-9.]+)}$", app_image()["build"]["args"]["SUPEREXEC_IMAGE"])


class EngineError(Exception):
    """A Docker command failed; the message has the end of what the command printed."""


def call(*words: str, environment: Mapping[str, str] | None = None, data: bytes | None = None) -> str:
    """Run a command and return what it prints; EngineError if it fails."""
    done = subprocess.run(
        words, env=os.environ | dict(environment or {}), input=data, capture_output=True, check=False
    )
    if done.returncode != 0:
        said = (done.stdout + done.stderr).decode(errors="replace")
        raise EngineError(f"{' '.join(words[:6])} ...: {said[-1500:]}")
    return done.stdout.decode(errors="replace")


def versions() -> dict[str, str] | None:
    """Return the versions of Docker, Compose and the kernel, or None if there is no engine or no Compose."""
    try:
        told = json.loads(call("docker", "info", "--format", "{{json .}}"))
        compose = call("docker", "compose", "version", "--short").strip()
    except (EngineError, OSError, ValueError):
        return None
    return {
        "Docker Engine": told["ServerVersion"],
        "Compose": compose,
        "cgroup": f"v{told.get('CgroupVersion', '1')}",
        "kernel": told["KernelVersion"],
        "processors": str(told["NCPU"]),
    }


def provide_images(*, stand_ins: bool, torch_backend: str) -> str:
    """Pull Flower's images, or make stand-ins for them if asked to, and build the image of the app.

    Returns:
        Which they are, in words.

    Raises:
        EngineError: an image is not there and not available.
    """
    names = [f"flwr/{program}:{FLOWER_VERSION}" for program in PROGRAMS]
    if not all(_is_there(name) for name in names):
        if stand_ins:
            _make_stand_ins(names)
        else:
            for name in names:
                call("docker", "pull", "--quiet", name)
    build = app_image()
    given = {name: value for name, value in build["build"]["args"].items() if "${" not in value}
    arguments = given | {"TORCH_BACKEND": torch_backend}
    flags = [word for key, value in arguments.items() for word in ("--build-arg", f"{key}={value}")]
    call(
        "docker",
        "build",
        "--file",
        str(PROJECT / "deploy/Dockerfile"),
        "--tag",
        build["image"],
        *flags,
        str(PROJECT),
    )
    label = call("docker", "image", "inspect", names[0], "--format", "{{json .Config.Labels}}")
    python = call("docker", "run", "--rm", "--entrypoint", "python", build["image"], "--version").strip()
    there = "some that were there" if stand_ins else "Flower's own"
    kind = "stand-ins on Debian" if BASE in label else there
    return f"{kind}, {python}, PyTorch for {torch_backend or 'CUDA'}"


def _is_there(image: str) -> bool:
    try:
        call("docker", "image", "inspect", image)
    except EngineError:
        return False
    return True


def _make_stand_ins(names: Sequence[str]) -> None:
    """Make images with Flower from PyPI on Debian, for machines that reach no registry of images."""
    with tempfile.TemporaryDirectory() as folder:
        context = Path(folder)
        if not _is_there(f"{BASE}:{SUITE}"):
            root = context / "root"
            packages = "--include=ca-certificates,python3,python3-venv"
            call("debootstrap", "--variant=minbase", packages, SUITE, str(root))
            call(
                "tar",
                "-C",
                str(root),
                "--exclude=./dev/*",
                "--exclude=./var/cache/apt/*",
                "-cf",
                f"{root}.tar",
                ".",
            )
            call("docker", "import", f"{root}.tar", f"{BASE}:{SUITE}")
            shutil.rmtree(root)
            Path(f"{root}.tar").unlink()
        # Where an index of packages is reached through a certificate of its own, so must the image.
        settings = dict(re.findall(r"^global\.(\S+)='(.*)'$", call("pip", "config", "list"), re.MULTILINE))
        lines = ["[global]"]
        if "index-url" in settings:
            lines.append(f"index-url = {settings['index-url']}")
        trusted = settings.get("cert") or os.environ.get(
            "SSL_CERT_FILE", "/etc/ssl/certs/ca-certificates.crt"
        )
        shutil.copy(trusted, context / "trusted.crt")
        (context / "pip.conf").write_text("\n".join([*lines, ""]), encoding="utf-8")
        for name in names:
            program = name.partition("/")[2].partition(":")[0]
            flags = ["--build-arg", f"BASE={BASE}:{SUITE}", "--build-arg", f"FLOWER={FLOWER_VERSION}"]
            flags += ["--build-arg", f"PROGRAM=flower-{program}", "--label", f"made-from={BASE}"]
            call("docker", "build", "--file", str(STAND_IN), "--tag", name, *flags, str(context))


@dataclass
class Project:
    """A project of Docker Compose in a directory of its own, with methods that run commands on it.

    Attributes:
        name: of the project.
        file: Compose file.
        root: holds the parties' files.
        variables: what the file's variables are set to.
    """

    name: str
    file: Path
    root: Path
    variables: dict[str, str] = field(default_factory=dict)

    def compose(self, *words: str) -> str:
        """Run a Compose command and return its output."""
        return call(*self._words(*words), environment=self._environment())

    def begin(self, *words: str) -> "Job":
        """Start a command of Compose, and do not wait for it."""
        log = self.root / f"{words[-1].replace('/', '_')}.log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                self._words(*words), env=os.environ | self._environment(), stdout=file, stderr=file
            )
        return Job(process, log)

    def job(self, service: str, *words: str) -> str:
        """Run a service that is a one-off job until it ends, and return its output."""
        return self.compose("run", "--rm", "--no-TTY", service, *words)

    def inspect(self, service: str) -> dict[str, Any]:
        """Return what Docker knows of a service's container."""
        found = self.compose("ps", "--all", "--quiet", service).split()
        if len(found) != 1:
            raise EngineError(f"{service} has {len(found)} containers")
        (told,) = json.loads(call("docker", "inspect", found[0]))
        return dict(told)

    def address(self, service: str) -> list[str]:
        """Return every address of a service."""
        networks = self.inspect(service)["NetworkSettings"]["Networks"].values()
        return [each["IPAddress"] for each in networks]

    def services(self) -> list[str]:
        """Return the names of the services that run all the time."""
        tree = json.loads(self.compose("config", "--format", "json"))
        return [name for name, each in tree["services"].items() if each.get("restart") != "no"]

    def reaches(self, service: str, host: str, port: int) -> bool:
        """Return whether a service's container can connect to this host and port."""
        said = self.compose("exec", "--no-TTY", service, "python", "-c", REACH, host, str(port)).strip()
        if said not in (OPEN, SHUT):
            raise EngineError(f"{service} does not say whether it reaches {host}:{port}: {said}")
        return said == OPEN

    def log(self, service: str) -> str:
        """Return what a service has printed since its container was made."""
        return self.compose("logs", "--no-color", "--no-log-prefix", service)

    def left(self) -> list[str]:
        """Return the names of the project's containers and networks that still exist."""
        label = f"label=com.docker.compose.project={self.name}"
        containers = call("docker", "ps", "--all", "--filter", label, "--format", "{{.Names}}").split()
        return (
            containers + call("docker", "network", "ls", "--filter", label, "--format", "{{.Name}}").split()
        )

    def remove(self) -> None:
        """Remove all containers and networks of the project, and try again while the engine is busy."""
        label = f"label=com.docker.compose.project={self.name}"

        def gone() -> bool:
            containers = call("docker", "ps", "--all", "--quiet", "--filter", label).split()
            if containers:
                with suppress(EngineError):
                    call("docker", "rm", "--force", *containers)
            return not containers

        until(gone, f"the containers of {self.name} are removed")
        self.compose("--profile", "*", "down")

    def _words(self, *words: str) -> tuple[str, ...]:
        place = ("--project-directory", str(PROJECT), "--file", str(self.file))
        return ("docker", "compose", "--project-name", self.name, *place, *words)

    def _environment(self) -> dict[str, str]:
        return {"FEDERATION_DIR": str(self.root), **self.variables}


@dataclass
class Job:
    """A Compose command that was started and may still run.

    Attributes:
        process: of the command.
        log: what it prints.
    """

    process: subprocess.Popen[bytes]
    log: Path

    def end(self) -> int:
        """Wait until the command has ended, and return its exit status."""
        return self.process.wait(timeout=WAIT_SECONDS)

    def text(self) -> str:
        """Return what the command has printed so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")


@contextmanager
def removed_afterwards(project: Project) -> Iterator[Project]:
    """Remove all containers and networks of the project at the end of a ``with`` block."""
    try:
        yield project
    finally:
        project.remove()


def until(holds: Callable[[], bool], what: str, seconds: float = WAIT_SECONDS) -> None:
    """Wait until a condition holds; if it takes too long, raise EngineError with the text ``what``."""
    deadline = monotonic() + seconds
    while not holds():
        if monotonic() > deadline:
            raise EngineError(f"not within {seconds:g} s: {what}")
        sleep(0.5)


def read(root: Path, path: str) -> bytes:
    """Return the contents of a file that belongs to the services' user."""
    words = ("run", "--rm", "--network", "none", "--user", "0:0", "--volume", f"{root}:/federation:ro")
    encode = f"import base64; print(base64.b64encode(open('/federation/{path}', 'rb').read()).decode())"
    image = app_image()["image"]
    return b64decode(call("docker", *words, "--entrypoint", "python", image, "-c", encode))


def put(root: Path, path: str, data: bytes) -> None:
    """Write a file into a folder that may belong to the services' user."""
    words = (
        "run",
        "--rm",
        "--interactive",
        "--network",
        "none",
        "--user",
        "0:0",
        "--volume",
        f"{root}:/federation",
    )
    write = f"mkdir -p $(dirname /federation/{path}) && cat > /federation/{path}"
    call("docker", *words, "--entrypoint", "sh", app_image()["image"], "-c", write, data=data)
