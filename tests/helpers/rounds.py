"""How often tests repeat what chance decides: moments of a kill, random inputs, damaged bytes."""

from __future__ import annotations

import os

#: 1 in `make test`; DLIO_TEST_ROUNDS=20, as in `make soak`, looks for what happens rarely.
ROUNDS = int(os.environ.get("DLIO_TEST_ROUNDS", "1"))
