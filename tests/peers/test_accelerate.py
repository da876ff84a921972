"""The tests of Accelerate's own sdist that take a loader class or a data set, with dlio's."""

from __future__ import annotations

import re
import shutil
import sys

import pytest

from tests.peers import installed

pytestmark = pytest.mark.jobs

#: README.md says why the others are left out.
CASES = "DataLoaderTester and not Stateful and (skip_data_loader or skip_first or end_of_dataloader or set_epoch)"
LEAST_PASSED = 7


def test_accelerates_own_tests_pass_with_dlios_loader(tmp_path):
    installed.require("accelerate-1.15.0", "parameterized")
    shutil.copy(installed.PEERS / "accelerate-1.15.0/tests/test_data_loader.py", tmp_path)
    words = ["-m", "pytest", "-q", "-s", "-p", "tests.peers.accelerate_plugin", "-p", "no:cacheprovider"]
    words += ["-W", "ignore", "--timeout", "100", "-k", CASES, "test_data_loader.py"]
    told = installed.run([sys.executable, *words], cwd=tmp_path)
    assert "failed" not in told and int(re.findall(r"(\d+) passed", told)[-1]) >= LEAST_PASSED, told[-2000:]
    assert "used DataLoader DataLoaderDispatcher DataLoaderShard SkipDataLoader" in told
