"""A plugin of pytest: writes the outcome and the seconds of each test to the file that $DLIO_OUTCOMES names."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Appends a line for each phase of a test that counts: its call, and whatever else failed or was skipped."""
    if report.when == "call" or report.outcome != "passed":
        with Path(os.environ["DLIO_OUTCOMES"]).open("a") as file:
            file.write(json.dumps([report.nodeid, report.outcome, report.duration]) + "\n")
