"""Once warm, decode_batch allocates for the batch and nothing for an image: counted by a preloaded malloc."""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

_SCRIPT = """
import ctypes, gc, json
import numpy as np
from dlio.native import decode_batch, make_crop_ready
from tests.native.jpegs import SUBSAMPLINGS, jpeg

counter = ctypes.CDLL(None).allocations
counter.restype = ctypes.c_ulong
sources = [jpeg(300, 200, name) for name in SUBSAMPLINGS] + [jpeg(300, 200, "4:2:0", progressive=True)]
images = sources + [make_crop_ready(source) for source in sources]

def allocations(copies):
    n = len(images) * copies
    boxes = np.array([(20, 10, 240, 170)] * n, np.int32)
    flips, out, buffers = np.zeros(n, bool), np.empty((n, 3, 96, 96), np.uint8), images * copies
    assert not decode_batch(buffers, boxes, flips, out).any()  # warm
    gc.collect()
    before = counter()
    decode_batch(buffers, boxes, flips, out)
    return counter() - before

print(json.dumps([allocations(20), allocations(40)]))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc" or not shutil.which("cc"), reason="needs glibc and a C compiler")
def test_nothing_is_allocated_for_an_image(tmp_path: Path) -> None:
    library = tmp_path / "count_allocations.so"
    source = Path(__file__).with_name("count_allocations.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    environment = {**os.environ, "LD_PRELOAD": str(library), "PYTHONPATH": str(Path(__file__).parents[2])}
    run = subprocess.run(
        [sys.executable, "-c", _SCRIPT], env=environment, capture_output=True, text=True, check=True, timeout=120
    )
    of_280_images, of_560_images = json.loads(run.stdout)
    assert of_280_images > 0, "the counter counts: the batch's own arrays"
    assert of_560_images == of_280_images
