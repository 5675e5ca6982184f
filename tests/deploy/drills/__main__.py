"""``python -m tests.deploy.drills``: the drills of docs/operations.md, on processes of this machine.

python -m tests.deploy.drills [--only PART ...] [--containers | --flower VERSION] [--write docs/operations.md]

With ``--containers`` Docker carries out the page's commands word for word, by root and with the images that
``python -m tests.deploy.containers`` has made; it knows the drills backup, ledgers, lost, names and upgrade.
With ``--flower`` the version that a federation upgrades to has another Flower, which PyPI must have.
"""

import argparse
import sys
from contextlib import AbstractContextManager
from pathlib import Path

from benchmarks.harness import publish
from gdpfed.report.console import Table
from tests.deploy.checks import CHECK_COLUMNS, Checks
from tests.deploy.drills import changed, day, kept, lines
from tests.deploy.drills.in_containers import InContainers, VersionsInContainers, contained
from tests.deploy.drills.processes import Host, hosted

LINES, UPGRADE = "lines", "upgrade"
OWN = {**kept.PARTS, **changed.PARTS}
"""Drills with a federation of their own."""
PARTS = (*day.PARTS, *OWN, UPGRADE, LINES)
OF_CONTAINERS = (*OWN, UPGRADE)


def main() -> int:
    """Run the drills; return 0 if all checks pass, 1 if one fails, 2 if the options do not fit together."""
    options = _parser().parse_args()
    only = options.only or (OF_CONTAINERS if options.containers else PARTS)
    if options.containers and (unknown := [name for name in only if name not in OF_CONTAINERS]):
        said = f"--containers does not know {', '.join(unknown)}: use --only {' '.join(OF_CONTAINERS)}"
        print(said, file=sys.stderr)
        return 2
    if options.flower and UPGRADE not in only:
        print(f"--flower is for the drill {UPGRADE}: add it to --only", file=sys.stderr)
        return 2
    checks, further = Checks(), list[Table]()
    try:
        if set(only) & day.PARTS.keys():
            day.scenario(only, checks)
        for name in (name for name in OWN if name in only):
            with contained(InContainers) if options.containers else hosted(Host) as host:
                OWN[name](host, checks)
        if UPGRADE in only:
            with _versions(containers=options.containers) as versions:
                if options.flower:
                    versions.bring_flower(options.flower)
                changed.upgrade(versions, checks)
        if LINES in only:
            further = lines.drill(checks)
    except KeyboardInterrupt:
        checks.interrupted = True
    where = "containers" if options.containers else "processes"
    where += f", and the next version has Flower {options.flower}" if options.flower else ""
    title = f"{len(checks.rows)} checks in {where}, {checks.failed} failed"
    note = " It was interrupted: the checks after these were not run." if checks.interrupted else ""
    of_day = [Table(title, CHECK_COLUMNS, checks.rows, note)] if set(only) - {LINES} else []
    publish([*of_day, *further], options.write)
    return 1 if checks.failed or checks.interrupted else 0


def _versions(*, containers: bool) -> AbstractContextManager[changed.Upgrading]:
    return contained(VersionsInContainers) if containers else hosted(changed.Versions, walled=False)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tests.deploy.drills",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--only", nargs="+", choices=PARTS, help="default: all")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--containers", action="store_true", help="by Docker's engine, not as processes")
    how.add_argument("--flower", metavar="VERSION", help="Flower of the version that is upgraded to")
    parser.add_argument("--write", type=Path, metavar="DOC", help="put the report into a document")
    return parser


if __name__ == "__main__":
    sys.exit(main())
