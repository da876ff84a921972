"""ArrayRecord files, written by the package array-record and adopted."""

from __future__ import annotations

from pathlib import Path

import pytest

import dlio
from dlio.dataset.schema import IMAGE_CLASSIFICATION, Sample
from dlio.errors import CorruptRecordError
from dlio.formats.payloads import example
from dlio.formats.readonly.array_record import Records
from dlio.pack.index import index
from dlio.sources import packed
from tests.helpers.adopted import PAIR, adopt, batch, photo_records
from tests.helpers.packing import samples

pytest.importorskip("array_record")
NAME = "train.array_record-00000-of-00001"


def write(path: Path, options: str = "group_size:2") -> None:
    from array_record.python.array_record_module import ArrayRecordWriter

    writer = ArrayRecordWriter(str(path), options)
    for key, fields in photo_records(0, 9):
        writer.write(b"".join(example.encoder(IMAGE_CLASSIFICATION)(Sample(key, fields))))
    writer.close()


def test_examples_are_adopted_load_and_convert(tmp_path):
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / NAME)
    manifest, found = adopt(tmp_path / "in", "array_record")
    assert manifest.schema.types() == PAIR
    assert found == photo_records(0, 9)
    assert batch(tmp_path / "in", [8, 0, 1])["label"].tolist() == [2, 0, 1]
    dlio.pack(packed(tmp_path / "in"), tmp_path / "out", format="tfrecord", engine="serial")
    assert samples(tmp_path / "out") == found


@pytest.mark.parametrize("at", [70, 120, 65560])
def test_damage_is_named(tmp_path, at):
    write(tmp_path / NAME)
    data = bytearray((tmp_path / NAME).read_bytes())
    data[at] ^= 255
    (tmp_path / NAME).write_bytes(data)
    with pytest.raises(CorruptRecordError, match=NAME):
        index(tmp_path, format="array_record", workers=1)


def test_records_around_a_damaged_group_are_read_in_any_order(tmp_path):
    write(tmp_path / NAME, "group_size:2,uncompressed")
    records = Records(tmp_path / NAME)
    whole = [records(number) for number in range(9)]
    records.close()
    data = bytearray((tmp_path / NAME).read_bytes())
    data[data.index(whole[4][-40:])] ^= 255  # the groups are 0 and 1, 2 and 3, 4 and 5, ...
    (tmp_path / NAME).write_bytes(data)
    for order in (range(9), range(8, -1, -1)):
        records = Records(tmp_path / NAME)
        for number in order:
            if number in (4, 5):
                with pytest.raises(
                    CorruptRecordError, match=f"{NAME}, record {number}, offset [0-9]+: the data has the hash"
                ):
                    records(number)
            else:
                assert records(number) == whole[number]
        records.close()
