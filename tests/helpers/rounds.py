"""How much the tests do: how often they repeat what chance decides, and whether all of them must run."""

from __future__ import annotations

import os

#: 1 in `make test`; DLIO_TEST_ROUNDS=20, as in `make soak`, looks for what happens rarely.
ROUNDS = int(os.environ.get("DLIO_TEST_ROUNDS", "1"))

#: DLIO_TEST_ALL=1, as in `.ci/run`: a test that is skipped for what the machine lacks fails.
NOTHING_IS_SKIPPED = os.environ.get("DLIO_TEST_ALL") == "1"
