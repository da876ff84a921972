"""The core as a whole: one bound on pixels, what it keeps in memory, and what happens where a library is missing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import dlio
from dlio.cli import main
from dlio.dataset.schema import MAX_PIXELS
from dlio.native import _core, _jpeg
from dlio.pack.recode import Recode
from tests.helpers.images import make_image_folder

ROOT = Path(__file__).parents[2]

_UNLOADABLE = """
import json, sys
from dlio import cli, errors, native
from dlio.look.checks import machine

folder = sys.argv[1]
report = {"there": [native.available, native.decodes_jpeg, native.decodes_png]}
report["doctor"] = [[finding.state, finding.found, finding.advice] for finding in machine.core("core")]
try:
    native.decode(b"")
except errors.MissingPackageError as error:
    report["decode"], report["code"] = str(error), error.exit_code
report["crop_ready"] = cli.main(["pack", folder, folder + "-1", "--format", "recordio", "--crop-ready", "--quiet"])
report["pack"] = cli.main(["pack", folder, folder + "-2", "--format", "recordio", "--quiet", "--workers", "1"])
report["verify"] = cli.main(["verify", folder + "-2", "--decode", "--quiet", "--workers", "1"])
ready = sys.argv[2]
report["make"] = cli.main(["pack", folder, folder + "-3", "--decode-ready", "--quiet"])
report["whole"] = cli.main(["verify", ready, "--quiet", "--workers", "1"])
report["read"] = [
    cli.main(words)
    for words in (
        ["verify", ready, "--decode", "--quiet", "--workers", "1"],
        ["convert", ready, folder + "-4", "--engine", "serial", "--quiet"],
        ["show", ready, "--quiet"],
    )
]
print(json.dumps(report))
"""

_KEEPS = """
import io, json
import numpy as np
from PIL import Image
from dlio.native import decode_batch, make_crop_ready

def resident():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("VmRSS")) >> 10

out = io.BytesIO()
Image.fromarray(np.random.default_rng(0).integers(0, 256, (5600, 5600), dtype="uint8")).save(out, "JPEG", quality=40)
source = out.getvalue()
ready = make_crop_ready(source)
damaged = [source[:-4000], ready[:-4000] + bytes(3998) + ready[-2:]]
box, part = np.array([[0, 0, 5600, 5600]], np.int32), np.empty((1, 8, 8, 3), np.uint8)
decode_batch([source[:1000]], box, np.array([False]), part)
before = resident()
statuses = [int(decode_batch([data], box, np.array([False]), part)[0]) for data in damaged]
print(json.dumps([statuses, resident() - before]))
"""


def test_one_bound_on_pixels() -> None:
    assert _core.MAX_PIXELS == MAX_PIXELS


def test_this_libjpeg_takes_the_cores_own_entropy_decoder() -> None:
    """Where one does not, windows are decoded all the same, but not as fast as docs/performance.md says."""
    assert _jpeg.TAKES_OUR_DECODER


def test_a_large_image_that_fails_leaves_no_memory_behind() -> None:
    run = subprocess.run(
        [sys.executable, "-c", _KEEPS], cwd=ROOT, capture_output=True, text=True, check=True, timeout=120
    )
    statuses, grown_mib = json.loads(run.stdout)
    assert statuses == [4, 4]
    assert grown_mib < 64  # its pixels take 120


def test_without_libraries_that_load_pillow_decodes(tmp_path: Path) -> None:
    if b"libjpeg.so." not in Path(_jpeg.__file__).read_bytes():
        pytest.skip("this core brings libjpeg along, as wheels do")
    make_image_folder(tmp_path / "photos", {"a": 2}, "JPEG")
    dlio.pack(tmp_path / "photos", tmp_path / "ready", recode=Recode(decode_ready=True), engine="serial")
    (tmp_path / "lib").mkdir()
    for name in ("libjpeg.so.62", "libjpeg.so.8", "libdeflate.so.0"):
        (tmp_path / "lib" / name).write_bytes(b"no library")
    environment = {**os.environ, "LD_LIBRARY_PATH": str(tmp_path / "lib")}
    run = subprocess.run(
        [sys.executable, "-c", _UNLOADABLE, str(tmp_path / "photos"), str(tmp_path / "ready")],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=True, timeout=120,
    )  # fmt: skip
    report = json.loads(run.stdout.splitlines()[-1])
    assert (report["there"], report["code"]) == ([True, False, False], 5)
    core, jpegs, pngs = report["doctor"]
    assert core[1].startswith("compiled core")
    assert jpegs[:2] == ["change", "JPEGs are decoded by Pillow"] and "libjpeg62-turbo-dev" in jpegs[2]
    assert pngs[:2] == ["change", "PNGs are decoded by Pillow"] and "libdeflate-dev" in pngs[2]
    assert "libjpeg.so" in report["decode"] and "apt-get install libjpeg62-turbo-dev g++" in report["decode"]
    assert (report["crop_ready"], report["pack"], report["verify"]) == (5, 0, 0)
    assert "making JPEGs crop-ready needs the compiled core's decoder of JPEGs" in run.stderr
    assert (report["make"], report["whole"], report["read"]) == (5, 0, [5, 5, 5])
    assert run.stderr.count("reading decode-ready records needs the compiled core's decoder of JPEGs") == 3
    assert main(["verify", str(tmp_path / "photos-2"), "--quiet"]) == 0
