"""``python -m release FOLDER``: write the sources of the published project into FOLDER."""

import sys
from pathlib import Path

from gdpfed.errors import ConfigError, line_of
from release.published import write_published


def main(words: list[str]) -> int:
    """Write the published files into the folder that the command line names; return the exit status."""
    if len(words) != 1 or words[0].startswith("-"):
        print("usage: python -m release FOLDER", file=sys.stderr)
        return 2
    try:
        write_published(Path(__file__).resolve().parents[1], Path(words[0]))
    except ConfigError as error:
        print(f"gdpfed: {line_of(error)}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
