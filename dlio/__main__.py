"""`python -m dlio`: the command line, where the `dlio` script is not on the path."""

from __future__ import annotations

import sys

from dlio.cli import main

sys.exit(main())
