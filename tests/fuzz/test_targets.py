"""Every reader is fuzzed for seconds, the same inputs each time; `python -m tools.fuzz` does so for hours."""

from __future__ import annotations

import os
import shutil
import signal
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.helpers import fork_server
from tests.helpers.rounds import ROUNDS
from tools.fuzz import inputs
from tools.fuzz.inputs import unpack

ROOT = Path(__file__).parents[2]
MAIN = ROOT / "tools" / "fuzz" / "__main__.py"
REGRESSIONS = ROOT / "tests" / "data" / "fuzz"  # TARGET/NAME: inputs that once were findings
TARGETS = [
    "arrow",
    "caffe-list",
    "chestxray14",
    "cifar10",
    "coco",
    "csv",
    "hdf5",
    "hdf5-earliest",
    "image",
    "index-array_record",
    "index-hdf5",
    "index-litdata",
    "index-lmdb",
    "index-mds",
    "index-parquet",
    "index-recordio",
    "index-squashfs",
    "index-tfrecord",
    "index-webdataset",
    "lmdb",
    "lst",
    "manifest",
    "npz",
    "parquet",
    "recordio",
    "squashfs",
    "tar",
    "tfrecord",
    "url",
    "voc",
    "webdataset",
    "zip",
]
RUNS = 50 * ROUNDS
NEEDS = {
    "hdf5": "h5py",
    "hdf5-earliest": "h5py",
    "index-hdf5": "h5py",
    "index-array_record": "array_record",
    "index-lmdb": "lmdb",
    "index-parquet": "pyarrow",
    "arrow": "pyarrow",
    "parquet": "pyarrow",
    "index-tfrecord": "tensorflow",
}
CRASHES = ("hdf5-earliest", "index-hdf5")  # without checksums, the HDF5 library itself ends on some damaged files
NEEDS |= {"index-webdataset": "webdataset", "manifest": "fsspec", "url": "fsspec", "lmdb": "google.protobuf"}


def fuzz(target: str, folder: Path, *options: object) -> tuple[int | None, str]:
    """Runs its own process, since an input that crashes or stops it must not stop the tests."""
    words = [target, "--blind", "--out", folder, *options]
    job = fork_server.start(("tools.fuzz.session",), MAIN, list(map(str, words)), folder, os.environ)
    said, _ = job.communicate(250)
    return job.poll(), said


def test_every_target_is_run(tmp_path):
    assert fuzz("list", tmp_path)[1].split() == sorted(TARGETS)


@pytest.mark.parametrize("target", TARGETS)
def test_hostile_inputs_give_errors_of_dlio_or_what_was_packed(target, tmp_path):
    if target == "index-squashfs" and not shutil.which("mksquashfs"):
        pytest.skip("needs mksquashfs")
    if not find_spec(NEEDS.get(target, "dlio")):
        pytest.skip(f"needs {NEEDS[target]}")
    code, said = fuzz(target, tmp_path, "--runs", RUNS)
    if target in CRASHES and code == -signal.SIGSEGV:
        pytest.xfail("a fault within the HDF5 library, which nothing in Python can prevent")
    assert code == 0, said


@pytest.mark.parametrize("path", sorted(REGRESSIONS.glob("*/*")), ids=lambda path: f"{path.parent.name}/{path.name}")
def test_what_was_once_found_stays_mended(path, tmp_path):
    code, said = fuzz(path.parent.name, tmp_path, path)
    assert code == 0, said


def test_a_reader_that_breaks_its_promise_is_found(tmp_path):
    """A label that differs, in a table without checksums, is what the targets look for."""
    from tools.fuzz.targets import TARGETS

    seed = TARGETS["lmdb"].seeds()[0]
    other = {**seed, inputs.CASE: seed[inputs.CASE].replace(b"cat 0", b"dog 7")}
    (tmp_path / "input").write_bytes(inputs.pack(other))
    code, said = fuzz("lmdb", tmp_path, tmp_path / "input")
    assert code == 1
    assert "Broken: a sample has its key" in said
    assert unpack(next((tmp_path / "lmdb" / "findings").glob("01")).read_bytes()) == other
