"""The tests of webdataset's own sdist, over tars that dlio has written.

The sdist brings no data: what its tests call `testdata` is packed here, 47 PNGs with labels as in theirs.
"""

from __future__ import annotations

import gzip
import io
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import dlio
from tests.peers import installed

pytestmark = pytest.mark.jobs

LEAST_PASSED = 160


def png(number: int) -> bytes:
    """Returns a picture of the size that the tests expect."""
    generator = np.random.default_rng(number)
    coarse = Image.fromarray(generator.integers(0, 256, (6, 5, 3), dtype=np.uint8))
    out = io.BytesIO()
    coarse.resize((600, 793), Image.Resampling.NEAREST).save(out, "PNG", compress_level=1)
    return out.getvalue()


def packed(folder: Path, num_samples: int) -> bytes:
    """Returns the tar that dlio writes."""
    with dlio.Writer(folder, format="webdataset") as writer:
        for number in range(num_samples):
            writer.write({"image": png(number), "label": number}, key=str(number))
    (tar,) = folder.glob("*.tar")
    return tar.read_bytes()


def test_webdatasets_own_tests_pass_over_dlios_tars(tmp_path):
    installed.require("webdataset-1.0.2", "imageio")
    data = tmp_path / "testdata"
    shutil.copytree(installed.PEERS / "webdataset-1.0.2/tests", tmp_path / "tests")
    shutil.copy(Path(__file__).with_name("webdataset_conftest.py"), tmp_path / "tests/conftest.py")
    (tmp_path / "tests/__init__.py").touch()  # before dlio's
    data.mkdir()
    (data / "imagenet-000000.tgz").write_bytes(gzip.compress(packed(tmp_path / "plain", 47), 1))
    words = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-W", "ignore", "--timeout", "60", "tests"]
    told = installed.run([sys.executable, *words], cwd=tmp_path)
    assert "failed" not in told and int(re.findall(r"(\d+) passed", told)[-1]) >= LEAST_PASSED, told[-2000:]
