"""array_record's tests of its data source, over dlio's reader, and dlio's index over its writer's options."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import pytest

import dlio
from dlio.dataset.schema import Sample, Schema
from dlio.formats.payloads import example
from dlio.loaders.dataset import PackedSamples
from tests.peers import installed

pytestmark = pytest.mark.jobs

array_record_module = pytest.importorskip("array_record.python.array_record_module")

#: Those that open their own file writing with their own reader need nothing of dlio; all pass.
LEAST_PASSED, LEAST_OPENED = 14, 18
DIGIT = Schema.of({"digit": "bytes"})


def write(path: Path, values: list[bytes], options: str) -> None:
    """Writes records by array_record's own writer, each an Example."""
    writer = array_record_module.ArrayRecordWriter(str(path), options)
    encode = example.encoder(DIGIT)
    for number, value in enumerate(values):
        writer.write(b"".join(encode(Sample(str(number), {"digit": value}))))
    writer.close()


def test_its_data_source_reads_through_dlio(tmp_path):
    digits = [str(digit).encode() for digit in range(10)]
    (tmp_path / "testdata").mkdir()
    for shard in range(2):
        path = tmp_path / f"testdata/digits.array_record-{shard:05}-of-00002"
        write(path, digits[5 * shard : 5 * shard + 5], "group_size:1")
    dlio.index(tmp_path / "testdata", format="array_record")
    shutil.copy(Path(array_record_module.__file__).with_name("array_record_data_source_test.py"), tmp_path)
    words = ["-m", "pytest", "-q", "-s", "-p", "tests.peers.array_record_plugin", "-p", "no:cacheprovider"]
    words += ["-W", "ignore", "--timeout", "60", "array_record_data_source_test.py"]
    told = installed.run([sys.executable, *words], {"TEST_TMPDIR": str(tmp_path)}, cwd=tmp_path)
    assert "failed" not in told and int(re.findall(r"(\d+) passed", told)[-1]) >= LEAST_PASSED, told[-2000:]
    assert int(re.findall(r"dlio opened (\d+) files", told)[-1]) >= LEAST_OPENED


@pytest.mark.parametrize(
    "options",
    [
        "group_size:1",
        "group_size:65536",
        "group_size:3,uncompressed",
        "group_size:2,brotli:6",
        "group_size:2,zstd:3",
        "group_size:2,snappy",
        "group_size:1,pad_to_block_boundary:true",
    ],
)
def test_options_of_its_writer_are_read(tmp_path, options):
    values = [bytes([number]) * (number * number) for number in range(50)]
    write(tmp_path / "all.array_record", values, options)
    dlio.index(tmp_path, format="array_record")
    found = PackedSamples(tmp_path)
    order = [*range(49, -1, -1), 7, 7]
    assert [bytes(sample.fields["digit"]) for sample in found.read(order)] == [values[number] for number in order]
