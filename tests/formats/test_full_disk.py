"""A disk that is full under the formats that open their file themselves."""

from __future__ import annotations

import subprocess
import sys

import pytest

SCRIPT = """
import contextlib, errno, pathlib, resource, sys
from dlio import formats
from dlio.errors import StorageError
from dlio.dataset.schema import IMAGE_CLASSIFICATION, Sample
name, folder, file = sys.argv[1:]
resource.setrlimit(resource.RLIMIT_FSIZE, (3 << 20, 3 << 20))
writer = formats.load(name).Writer(pathlib.Path(folder) / "a", IMAGE_CLASSIFICATION)
try:
    for i in range(1000):
        writer.write(Sample(str(i), {"image": bytes(20000), "label": i}))
except StorageError as error:
    assert error.errno == errno.EFBIG and f"{file}: File too large: raise the limit" in str(error), error
    with contextlib.suppress(StorageError):
        writer.close()
    writer.close()
    sys.exit(42)
"""


@pytest.mark.parametrize(("name", "file"), [("hdf5", "a.h5"), ("lmdb", "a.lmdb/data.mdb"), ("squashfs", "a.sqsh")])
def test_a_full_disk_is_a_storage_error(name, file, tmp_path):
    command = [sys.executable, "-c", SCRIPT, name, str(tmp_path), file]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 42, done.stderr
