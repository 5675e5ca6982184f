"""Carry out the commands of docs/operations.md exactly, in containers of a Docker engine."""

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import TypeVar, cast

from deploy.federation import Federation, Node
from deploy.loopback import LoopbackFederation
from deploy.placements import Loopback
from deploy.services import services
from deploy.topology import LEDGER, LEDGER_FILE, RUNS, SERVER, SERVER_SUPEREXEC
from gdpfed.errors import LaunchError
from gdpfed.launch.flower_run import FlowerRun
from gdpfed.runs.file_formats import CONFIG_FILE
from testing.project import PROJECT
from tests.deploy.containers.engine import EngineError, Job, Project, app_image, call, removed_afterwards
from tests.deploy.drills.changed import Upgrading
from tests.deploy.drills.page import blocks, commands_of
from tests.deploy.drills.processes import (
    FILE,
    INTRODUCTION,
    PARTIES,
    Host,
    described,
    running_from,
    shell,
)

AnyHost = TypeVar("AnyHost", bound="InContainers")
PREFIX = "10.218"
NO_TERMINAL = {"run": ["run", "--rm", "--no-TTY"], "exec": ["exec", "--no-TTY"]}


class InContainers(Host):
    """One host of all parties, whose services are containers.

    `project`: of Compose, with the page's file and folder.
    """

    def __init__(self, project: Project) -> None:
        self.project = project
        self._said = ""
        # What a drill asks of processes, from the folders that containers write.
        answers = SimpleNamespace(
            home=SimpleNamespace(path=project.root, read=lambda _: self._said),
            runs=project.root / SERVER_SUPEREXEC / RUNS,
            log=project.log,
            ledger_of=lambda node: project.root / node.superexec / LEDGER / LEDGER_FILE,
        )
        super().__init__(cast("LoopbackFederation", answers), project.file.parent)

    @property
    def federation(self) -> Federation:
        """The federation that the Compose file describes now."""
        return described(self.project.file)

    @property
    def nodes(self) -> tuple[Node, ...]:
        return self.federation.nodes

    def compose(self, words: Sequence[str]) -> str:
        """Run a Compose command as docs/operations.md has it, and return its output.

        Raises LaunchError: it failed.
        """
        self.project.variables |= self.variables()
        match words:
            case ["run", "--rm", "train", *rest]:
                return self.finish(self._train(*rest))
            case ["run", "--rm", *rest] | ["exec", *rest]:
                words = [*NO_TERMINAL[words[0]], *rest]
        try:
            return self.project.compose(*words)
        except EngineError as error:
            raise LaunchError(str(error)) from None

    def stop(self, *names: str) -> None:
        self.compose(["stop", *names])

    def up(self, *names: str) -> None:
        self.compose(["up", "--detach", "--wait", *names])

    def job(self, name: str, words: Sequence[str]) -> str:
        return self.compose(["run", "--rm", name, *words])

    def submit(self, name: str, overrides: Collection[str]) -> FlowerRun:
        resuming = (self.files(name) / CONFIG_FILE).exists()
        where = f"{'run.resume' if resuming else 'run.directory'}={name}"
        self.project.variables |= self.variables()
        return self._train(*overrides, where)

    def _train(self, *words: str) -> FlowerRun:
        return cast("FlowerRun", self.project.begin(*NO_TERMINAL["run"], "train", *words))

    def finish(self, run: FlowerRun | Job) -> str:
        job = cast("Job", run)
        status = job.end()
        self._said = job.text()
        if status != 0:
            raise LaunchError(" ".join(self._said.split())[-1500:])
        return self._said


class VersionsInContainers(Upgrading, InContainers):
    """An upgradable host whose services are containers; a running container keeps its old image."""

    def build(self, party: str) -> None:
        del party
        self._make(self.pulled[0])

    def change(self, party: str) -> None:
        if party == SERVER:
            self.job("init", ())
        place = Loopback.on_free_ports(self.root, self.federation)
        mine = [each.name for each in services(self.federation, place) if each.party == party]
        self.compose(["up", "--detach", "--wait", "--no-deps", *mine])

    def serve(self, checkout: Path) -> None:
        self._make(checkout)
        self.job("init", ())

    def _make(self, checkout: Path) -> None:
        """Build the app's image with the code of another checkout and the same packages."""
        image = app_image()["image"]
        lines = f"FROM {image}\nUSER root\nCOPY . /project/\nUSER app\n"
        (checkout / "Dockerfile").write_text(lines, encoding="utf-8")
        call("docker", "build", "--tag", image, str(checkout))


@contextmanager
def contained(kind: type[AnyHost]) -> Iterator[AnyHost]:
    """Start the federation of docs/operations.md in containers, and remove it at the end.

    `kind`: of the host. The app's image has its name again afterwards.
    """
    image = app_image()["image"]
    ours = call("docker", "image", "inspect", "--format", "{{.Id}}", image).strip()
    made, *_ = commands_of(blocks(INTRODUCTION)[0])
    with TemporaryDirectory(prefix="gdpfed-drill-") as name, running_from(PROJECT):
        folder = Path(name)
        shell(made, folder)
        project = Project("gdpfed-drill", folder / FILE, folder / PARTIES, {"NETWORK_PREFIX": PREFIX})
        project.root.mkdir()
        with removed_afterwards(project):
            host = kind(project)
            host.up()
            try:
                yield host
            finally:
                call("docker", "tag", ours, image)
