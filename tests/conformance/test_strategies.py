"""Every staging strategy of dlio, found by its name."""

from __future__ import annotations

import pytest

from dlio.stage import strategies
from dlio.testing.strategies import StrategyTests


@pytest.mark.parametrize("strategy", strategies.names())
class TestEveryStrategy(StrategyTests):
    pass
