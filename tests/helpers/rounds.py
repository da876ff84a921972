"""How much the tests do: how often they repeat random cases, and whether all of them must run."""

from __future__ import annotations

import os

#: 1 in `make test`; DLIO_TEST_ROUNDS=20, as in `make soak`, looks for rare failures.
ROUNDS = int(os.environ.get("DLIO_TEST_ROUNDS", "1"))

#: DLIO_TEST_ALL=1, as in `.ci/run`: a test fails if it is skipped because the machine lacks something.
NOTHING_IS_SKIPPED = os.environ.get("DLIO_TEST_ALL") == "1"
