"""Every container, one after another."""

from __future__ import annotations

import pytest

from dlio import formats
from dlio.testing.container import Container


@pytest.fixture(params=formats.names())
def each_container(request: pytest.FixtureRequest) -> Container:
    """A format of dlio, found by its name."""
    return Container(request.param)
