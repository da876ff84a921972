"""A plugin of pytest: writes the outcome of each test to the file that $DLIO_OUTCOMES names."""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Appends a line for each phase of a test that counts: its call, and whatever else failed or was skipped."""
    report = yield
    if report.when == "call" or report.outcome != "passed":
        path = item.path.relative_to(Path.cwd()) if item.path.is_relative_to(Path.cwd()) else item.path
        with Path(os.environ["DLIO_OUTCOMES"]).open("a") as file:  # a node id lacks the path of a file outside
            file.write(json.dumps([f"{path}::{item.nodeid.partition('::')[2]}", report.outcome]) + "\n")
    return report
