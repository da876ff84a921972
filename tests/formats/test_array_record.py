"""ArrayRecord files with wrong headers, with damage anywhere, and read after a fork."""

from __future__ import annotations

import struct
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio.errors import CorruptRecordError
from dlio.formats.layouts.riegeli import BLOCK_BYTES
from dlio.formats.payloads.wire import varint
from dlio.formats.readonly.array_record import Records
from tests.helpers.riegeli import FIRST, Chunk, File, hashed, packed

RECORDS = [bytes([number]) * number * 100 for number in range(8)]
GROUPS = [Chunk.of(RECORDS[:3]), Chunk.of(RECORDS[3:6]), Chunk.of(RECORDS[6:])]
WHOLE = File(GROUPS)


def records_of(path: Path, data: bytes) -> list[bytes]:
    path.write_bytes(data)
    with closing(Records(path)) as records:
        return [records(number) for number in range(len(records))]


def package_writes(path: Path, records: list[bytes], options: str) -> None:
    module = pytest.importorskip("array_record.python.array_record_module")
    writer = module.ArrayRecordWriter(str(path), options)
    for record in records:
        writer.write(record)
    writer.close()


def test_what_these_tests_write_is_what_the_package_reads(tmp_path: Path) -> None:
    assert records_of(tmp_path / "a", WHOLE.pack()) == RECORDS
    module = pytest.importorskip("array_record.python.array_record_module")
    with closing(module.ArrayRecordReader(str(tmp_path / "a"), "")) as reader:
        assert reader.read_all() == RECORDS


@pytest.mark.parametrize("group_size", [1, 7, 64])
@pytest.mark.parametrize("compression", ["uncompressed", "zstd:3", "brotli:3", "snappy"])
@pytest.mark.parametrize("padding", ["false", "true"])
def test_what_the_package_writes_is_read(tmp_path: Path, group_size: int, compression: str, padding: str) -> None:
    path, records = tmp_path / "a", [bytes([number % 3]) + bytes(number * number * 7) for number in range(130)]
    package_writes(path, records, f"group_size:{group_size},{compression},pad_to_block_boundary:{padding}")
    with closing(Records(path)) as found:
        assert len(found) == 130
        for order in (range(130), range(129, -1, -1), [5, 5, 6, 0, 129]):
            assert [found(number) for number in order] == [records[number] for number in order]
        assert found.locate(129) > found.locate(0) >= FIRST


def test_a_file_without_records_is_read(tmp_path: Path) -> None:
    package_writes(tmp_path / "a", [], "group_size:4")
    assert records_of(tmp_path / "a", (tmp_path / "a").read_bytes()) == []


def test_transposed_records_are_refused_by_name(tmp_path: Path) -> None:
    package_writes(tmp_path / "a", RECORDS, "group_size:4,transpose:true")
    with pytest.raises(CorruptRecordError, match="a, record 0, offset 64: its records are transposed"):
        records_of(tmp_path / "a", (tmp_path / "a").read_bytes())


@pytest.mark.parametrize("compression", ["uncompressed", "zstd:3"])
def test_a_byte_that_flips_is_found_or_does_not_matter(tmp_path_factory, compression: str) -> None:
    path = tmp_path_factory.mktemp("flipped") / "a"
    records = [bytes([number]) * 60_000 + struct.pack("<Q", number) for number in range(3)]
    package_writes(path, records, f"group_size:2,{compression}")
    data = path.read_bytes()
    places = [at for block in range(0, len(data), BLOCK_BYTES) for at in range(block, min(block + 300, len(data)))]

    @given(at=st.sampled_from(places) | st.integers(0, len(data) - 1), change=st.integers(1, 255))
    def check(at: int, change: int) -> None:
        flipped = bytearray(data)
        flipped[at] ^= change
        try:
            assert records_of(path, flipped) == records
        except CorruptRecordError as error:
            assert error.path == str(path)

    check()


def test_the_header_of_a_block_is_of_its_chunk(tmp_path: Path) -> None:
    records = [bytes(100_000)]
    package_writes(tmp_path / "a", records, "group_size:1,uncompressed")
    data = (tmp_path / "a").read_bytes()
    header = hashed(struct.pack("<QQ", BLOCK_BYTES - FIRST - 1, 5))
    with pytest.raises(CorruptRecordError, match="block at 65536 is of a chunk from 65 to 65541, expected 64 to"):
        records_of(tmp_path / "a", data[:BLOCK_BYTES] + header + data[BLOCK_BYTES + len(header) :])


def test_a_group_is_read_once_while_its_records_are_read_in_order(tmp_path: Path) -> None:
    """The file is damaged once its first group is in memory."""
    data = WHOLE.pack()
    (tmp_path / "a").write_bytes(data)
    with closing(Records(tmp_path / "a")) as records:
        assert records(0) == RECORDS[0]
        (tmp_path / "a").write_bytes(data.replace(RECORDS[2], bytes(200)))
        assert [records(1), records(2), records(3)] == RECORDS[1:4]
        with pytest.raises(CorruptRecordError, match="record 1, offset 64: the data has the hash"):
            records(1)


HUGE = 1 << 55
FRAME = bytes.fromhex("28b52ffd200109000064")  # of zstd: the byte 100, the size of a record
SIZE = b"z" + varint(1 + len(FRAME)) + varint(1) + FRAME
BOMB = SIZE + varint(1 << 40) + bytes(9)
FRAME_BOMB = SIZE + varint(100) + FRAME[:4] + b"\xe0" + struct.pack("<Q", 1 << 45) + bytes(9)
LIES: dict[str, tuple[File, str]] = {
    "of another kind": (replace(WHOLE, magic=5), "the magic number 5"),
    "index beyond the end": (replace(WHOLE, footer_offset=HUGE), "offset 36028797018963968: expected 64 bytes"),
    "index far beyond the end": (
        replace(WHOLE, footer_offset=2**64 - 1),
        "offset 18446744073709551615: expected 64 bytes",
    ),
    "index in a block's header": (replace(WHOLE, footer_offset=10), "offset 10: .*cannot begin here"),
    "index is a chunk of records": (replace(WHOLE, footer_offset=FIRST), "no index of ArrayRecord"),
    "of a later version": (replace(WHOLE, whole=(2, 3, 8)), "version 2, expected 1"),
    "more records": (replace(WHOLE, whole=(1, 3, 9)), "3 chunks of 8 records, expected 3 of 9"),
    "more chunks": (replace(WHOLE, whole=(1, 4, 8)), "expected 4 of 8"),
    "not in order": (replace(WHOLE, listed={0: (2000, 300, 3)}), "do not follow each other"),
    "one chunk twice": (replace(WHOLE, listed={1: (FIRST, 300, 3)}), "do not follow each other"),
    "groups of several sizes": (replace(WHOLE, listed={0: (FIRST, 300, 2)}), "do not all have 2 records"),
    "group without records": (replace(WHOLE, listed={2: (2000, 1300, 0)}), "do not follow each other"),
    "a chunk with other records": (replace(WHOLE, listed={2: (2000, 1300, 3)}, whole=(1, 3, 9)), "offset 2000"),
    "a chunk with other bytes": (File([GROUPS[0]], listed={0: (FIRST, 301, 3)}), "record 0, offset 64: .* 300 bytes"),
    "records without end": (File([replace(GROUPS[0], num_records=HUGE)]), "do not follow|claims"),
    "bytes without end": (File([replace(GROUPS[0], num_bytes=HUGE)]), f"of {HUGE} bytes, more than"),
    "data without end": (File([replace(GROUPS[0], size=HUGE)]), f"a chunk of {HUGE} bytes claims"),
    "a chunk of padding": (File([replace(GROUPS[0], kind=b"p")]), "found one of the kind 'p'"),
    "an empty chunk": (File([replace(GROUPS[0], data=b"")]), "ends within a number"),
    "an unknown compression": (File([replace(GROUPS[0], data=b"q" + GROUPS[0].data[1:])]), "compressed by 'q'"),
    "sizes of other records": (File([Chunk(packed([b"ab", b"c"]), 2, 4)]), "not of 2 records of 4 bytes"),
    "sizes beyond the records": (File([Chunk(packed([b"ab", b"c"]), 1, 3)]), "not of 1 records"),
    "sizes without end": (File([Chunk(b"\0" + varint(20) + varint(-1) * 2, 2, 0)]), "not of 2 records of 0 bytes"),
    "a number of 11 bytes": (File([Chunk(b"\0" + b"\x80" * 20 + b"\0", 1, 1)]), "more than 10 bytes"),
    "a bomb": (File([Chunk(BOMB, 1, 100)]), "claims 1099511627776 bytes, expected 100 at most"),
    "a bomb by its own header": (File([Chunk(FRAME_BOMB, 1, 100)]), "of more bytes than it claims"),
    "a bomb of sizes": (File([Chunk(b"z" + varint(9) + varint(HUGE), 1, 0)]), "claims .* expected 10 at most"),
}


@pytest.mark.parametrize("lie", LIES)
def test_lies_are_told_before_they_take_memory(lie: str, tmp_path: Path) -> None:
    file, said = LIES[lie]
    with pytest.raises(CorruptRecordError, match=said) as raised:
        records_of(tmp_path / "a", file.pack())
    assert raised.value.path == str(tmp_path / "a")


@pytest.mark.parametrize("method", ["z", "b", "s"])
def test_compressed_bytes_of_another_size_are_damage(tmp_path: Path, method: str) -> None:
    cramjam = pytest.importorskip("cramjam")
    library = {"z": cramjam.zstd.compress, "b": cramjam.brotli.compress, "s": cramjam.snappy.compress_raw}[method]
    content = bytes(range(250)) * 4
    whole, longer, shorter = (bytes(library(data)) for data in (content, content * 2, content[:-1]))
    sizes = varint(2) + bytes(library(varint(1000)))

    def read(compressed: bytes) -> list[bytes]:
        data = method.encode() + varint(len(sizes)) + sizes + varint(1000) + compressed
        return records_of(tmp_path / "a", File([Chunk(data, 1, 1000)]).pack())

    assert read(whole) == [content]
    for wrong in (b"", whole[:-3], longer, shorter):
        with pytest.raises(CorruptRecordError, match="record 0, offset 64: a chunk's compressed part"):
            read(wrong)


FORK = """
import os, sys, threading
from pathlib import Path
from tests.formats.test_array_record import RECORDS, package_writes
from dlio.formats.readonly.array_record import Records

path = Path(sys.argv[1])
package_writes(path, RECORDS, "group_size:2,zstd:3")
if not (child := os.fork()):
    for _ in range(70):
        threading.Thread(target=threading.Event().wait, daemon=True).start()
    records = Records(path)
    os._exit([records(number) for number in range(8)] != RECORDS)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_child_of_a_process_that_used_the_package_reads(tmp_path: Path) -> None:
    pytest.importorskip("array_record")
    assert subprocess.run([sys.executable, "-c", FORK, tmp_path / "a"], timeout=60).returncode == 0
