"""A core that is built where libjpeg-turbo's headers are missing serves all but JPEGs, which Pillow decodes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

from dlio import native
from dlio.codecs import decoders
from dlio.images import Resize
from tests.helpers.images import make_image_folder
from tests.helpers.transforms import keys
from tests.native.jpegs import SUBSAMPLINGS, jpeg

ROOT = Path(__file__).parents[2]
FILES = ["CMakeLists.txt", "LICENSE", "README.md", "pyproject.toml"]
FILES += ["packaging/LICENSE.libraries", "packaging/libraries.cmake"]  # and no sources of libjpeg-turbo
SERVED = ["native/test_crc32c.py", "native/test_read_files.py", "codecs/test_png.py", "test_random_keys.py"]
SERVED += ["io/test_random_access.py"]

_DECODE = """
import sys
import numpy as np
from dlio import native
from dlio.codecs import decoders
from dlio.images import Resize
from tests.helpers.transforms import keys
from tests.native.jpegs import SUBSAMPLINGS, jpeg

assert (native.available, native.decodes_jpeg, native.decodes_png) == (True, False, sys.argv[2] == "True")
out = np.empty((len(SUBSAMPLINGS), 40, 48, 3), np.uint8)
assert decoders.decode_batch([jpeg(48, 40, name) for name in SUBSAMPLINGS], Resize((40, 48)), keys(len(out)), out) == {}
np.save(sys.argv[1], out)
"""


def build(folder: Path) -> Run:
    """Builds and unpacks a wheel; returns what starts Python with it, in place of the dlio that is installed here."""
    shutil.copytree(ROOT / "dlio", folder / "dlio", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "packaging").mkdir()
    for name in FILES:
        shutil.copy(ROOT / name, folder / name)
    missing = "cmake.define.CMAKE_DISABLE_FIND_PACKAGE_JPEG=ON"  # CMake's own, as if there were no headers
    wheel = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", folder, "-C", missing]
    environ = {name: value for name, value in os.environ.items() if name != "DLIO_SYSTEM_JPEG"}
    subprocess.run([*wheel, folder], check=True, env=environ)
    zipfile.ZipFile(next(folder.glob("*.whl"))).extractall(folder / "site")
    return Run(folder / "site")


class Run:
    """Starts Python with a folder of modules before all others."""

    def __init__(self, site: Path) -> None:
        self._environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(site), str(ROOT), *filter(None, sys.path)])}

    def __call__(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-P", "-S", *map(str, arguments)]  # an editable installation would come first
        return subprocess.run(command, cwd=ROOT, env=self._environ, capture_output=True, text=True)


@pytest.mark.jobs
@pytest.mark.timeout(900)
@pytest.mark.skipif(not native.decodes_jpeg, reason="compares with the core's decoder of JPEGs, which is not installed")
def test_a_build_without_libjpeg_serves_all_but_jpegs(tmp_path: Path) -> None:
    (tmp_path / "build").mkdir()
    run = build(tmp_path / "build")
    serves_what_needs_no_libjpeg(run, tmp_path)
    decodes_jpegs_by_pillow(run, tmp_path)
    says_what_is_missing(run, tmp_path)


def serves_what_needs_no_libjpeg(run: Run, folder: Path) -> None:
    options = ["-q", "-p", "no:cacheprovider", "--basetemp", folder / "tests", "-k", "not ways"]
    done = run("-m", "pytest", *options, *[ROOT / "tests" / name for name in SERVED])
    assert done.returncode == 0 and "skipped" not in done.stdout, done.stdout[-3000:]


def decodes_jpegs_by_pillow(run: Run, folder: Path) -> None:
    pictures = [jpeg(48, 40, name) for name in SUBSAMPLINGS]
    expected = np.empty((len(pictures), 40, 48, 3), np.uint8)
    assert decoders.decode_batch(pictures, Resize((40, 48)), keys(len(pictures)), expected) == {}
    done = run("-c", _DECODE, folder / "pixels.npy", native.decodes_png)
    assert done.returncode == 0, done.stderr
    assert np.array_equal(np.load(folder / "pixels.npy"), expected)
    job = ROOT / "packaging" / "main_job.py"  # packs, verifies and loads, and compares
    subprocess.run([sys.executable, job, folder, "core"], check=True, capture_output=True)
    done = run(job, folder, "pillow")
    assert done.returncode == 0, done.stdout + done.stderr


def says_what_is_missing(run: Run, folder: Path) -> None:
    lines = run("-m", "dlio", "doctor").stdout.splitlines()
    (at,) = [number for number, line in enumerate(lines) if "JPEGs are decoded by Pillow" in line]
    assert lines[at].startswith("change") and "libjpeg62-turbo-dev" in "".join(lines[at : at + 3]), lines
    assert any(line.startswith("good") and "compiled core" in line for line in lines), lines
    make_image_folder(folder / "photos", {"a": 1}, "JPEG")
    packed = run("-m", "dlio", "pack", folder / "photos", folder / "out", "--crop-ready", "--format", "recordio")
    assert packed.returncode == 5 and "needs the compiled core's decoder of JPEGs" in packed.stderr, packed
    assert not (folder / "out").exists()
