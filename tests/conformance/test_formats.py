"""Every format of dlio, found by its name."""

from __future__ import annotations

import pytest

from dlio import formats
from dlio.testing.container import Container
from dlio.testing.formats import FormatTests


class TestEveryFormat(FormatTests):
    @pytest.fixture(params=formats.names())
    def container(self, request: pytest.FixtureRequest) -> Container:
        return Container(request.param)
