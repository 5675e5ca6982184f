"""``python -m gdpfed.cli``, the same as the command ``gdpfed``."""

import sys

from gdpfed.cli.app import main

sys.exit(main())
