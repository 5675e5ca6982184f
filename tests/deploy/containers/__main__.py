"""``python -m tests.deploy.containers``: build, start, train, break, audit and take down, in containers.

    python -m tests.deploy.containers [--nodes 3] [--stand-ins] [--torch-backend cpu] [--only PART ...]
                                      [--write docs/deployment.md]

Without a Docker engine it says so in one line and ends with 0. With one that reaches no registry of images,
``--stand-ins`` makes images from Debian and PyPI under the names of Flower's (root, debootstrap), and
``--torch-backend ""`` takes PyTorch from PyPI. It uses project names and networks of its own. If it is
interrupted, it takes everything down and reports what it had checked.
"""

import argparse
import sys
import tempfile
import textwrap
from contextlib import ExitStack
from pathlib import Path

from benchmarks.harness import DOC_COLUMNS, publish
from gdpfed.report.console import Table
from tests.deploy.checks import CHECK_COLUMNS, Checks
from tests.deploy.containers import hosts, layered, one_host
from tests.deploy.containers.engine import EngineError, app_image, call, provide_images, versions

HOSTS, LAYERS = "hosts", "layers"
PARTS = (*one_host.PARTS, HOSTS, LAYERS)


def main() -> int:
    """Run the checks; return 1 if one fails, and 0 if all pass or there is no Docker engine."""
    options = _parser().parse_args()
    told = versions()
    if told is None:
        print("no Docker engine with Compose answers here: the containers are not tested")
        return 0
    try:
        images = provide_images(stand_ins=options.stand_ins, torch_backend=options.torch_backend)
    except EngineError as error:
        print(f"the images are not available: {error}", file=sys.stderr)
        return 1
    checks = Checks()
    with ExitStack() as closing:
        root = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="gdpfed-containers-")))
        closing.callback(_hand_over, root)
        try:
            if HOSTS in options.only:
                hosts.scenario(_made(root / HOSTS), options.nodes, checks)
            if LAYERS in options.only:
                layered.scenario(_made(root / LAYERS), options.nodes, checks)
            if set(options.only) - {HOSTS, LAYERS}:
                one_host.scenario(_made(root / "one-host"), options.nodes, options.only, checks)
        except KeyboardInterrupt:
            checks.interrupted = True
    where = ", ".join(f"{key} {value}" for key, value in told.items())
    title = f"{len(checks.rows)} checks in containers, {checks.failed} failed"
    end = " It was interrupted: the checks after these were not run." if checks.interrupted else ""
    note = f"{where}; images: {images}; {options.nodes} nodes.{end}"
    publish([Table(title, CHECK_COLUMNS, checks.rows, textwrap.fill(note, DOC_COLUMNS))], options.write)
    return 1 if checks.failed or checks.interrupted else 0


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder


def _hand_over(root: Path) -> None:
    """Give the caller the ownership of files that containers wrote, so that the caller can delete them."""
    words = ("run", "--rm", "--network", "none", "--user", "0:0", "--volume", f"{root}:/root-of-test")
    change = f"chown -R {root.stat().st_uid}:{root.stat().st_gid} /root-of-test"
    call("docker", *words, "--entrypoint", "sh", app_image()["image"], "-c", change)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.deploy.containers",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--nodes", type=int, default=3, help="default: %(default)s")
    parser.add_argument("--stand-ins", action="store_true", help="make images where none can be pulled")
    parser.add_argument("--torch-backend", default="cpu", help="of the app's image; default: %(default)s")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, help="default: all")
    parser.add_argument("--write", type=Path, metavar="DOC", help="put the report into a document")
    return parser


if __name__ == "__main__":
    raise SystemExit(main())
