"""The tests of grain's DataLoader over numbers that dlio has packed, and of its TFRecord source over dlio's file."""

from __future__ import annotations

import re
import sys

import pytest

import dlio
from tests.peers import installed

pytestmark = pytest.mark.jobs

#: In one process with grain's default of threads, and with two workers. Its other cases with workers start dozens of
#: processes, which takes minutes; those over grain's own files read nothing of dlio's.
CASES = (
    "DataLoaderTest_0 and (single_process or two_processes or drift0 or batch or flat_map or random_map "
    "or same_object0 or same_object1 or reconstruction0 or reconstruction1)"
)
LEAST_PASSED = 15
SOURCES = "grain._src.python.dataset.sources"


def test_grains_own_loader_reads_dlios_samples(tmp_path):
    installed.require("grain", "parameterized", "portpicker.py")
    words = ["-m", "pytest", "-q", "-p", "tests.peers.grain_plugin", "-p", "no:cacheprovider", "-W", "ignore"]
    words += ["--timeout", "100", "-k", CASES, "--pyargs", "grain._src.python.data_loader_test"]
    told = installed.run([sys.executable, *words], {"JAX_PLATFORMS": "cpu"}, cwd=tmp_path)
    assert "failed" not in told and int(re.findall(r"(\d+) passed", told)[-1]) >= LEAST_PASSED, told[-2000:]
    assert (tmp_path / "numbers-0-8-1/manifest.jsonl").exists()  # the source was dlio's


def test_grains_tests_of_tfrecord_read_dlios_file(tmp_path):
    installed.require("grain")
    with dlio.Writer(tmp_path / "packed", format="tfrecord") as writer:
        for text in (b"1", b"1 1", b"2 1", b"1 2 1 1", b"1 1 1 2 2 1"):
            writer.write({"text": text})
    (tmp_path / "testdata").mkdir()
    (shard,) = (tmp_path / "packed").glob("*.tfrecord")
    shard.rename(tmp_path / "testdata/morris_sequence_first_5.tfrecord")
    words = ["-m", "pytest", "-q", "-p", "tests.peers.grain_tfrecord_plugin", "-p", "no:cacheprovider", "-W", "ignore"]
    words += ["--timeout", "100", "--source", tmp_path, "--pyargs", f"{SOURCES}.tfrecord_dataset_test"]
    environment = {"TEST_TMPDIR": str(tmp_path), "JAX_PLATFORMS": "cpu"}
    told = installed.run([sys.executable, *words], environment, cwd=tmp_path)
    assert "failed" not in told and int(re.findall(r"(\d+) passed", told)[-1]) == 5, told[-2000:]
