"""``python -m gdpfed.cli``, the same as the command ``gdpfed``."""

import sys

from gdpfed.cli import main

sys.exit(main())
