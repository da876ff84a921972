"""The public name of `dlio.pack.sources`."""

from __future__ import annotations

import sys

from dlio.pack.sources import *  # noqa: F403  for type checkers; `import dlio.sources` gives the package itself

sys.modules[__name__] = sys.modules["dlio.pack.sources"]
