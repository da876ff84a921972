"""Samples written in groups: the same bytes as one by one, and a group is written whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio import formats
from dlio.dataset.checksum import crc32c, crc32c_of_group
from dlio.dataset.sample_group import SampleGroup
from dlio.dataset.sample_table import SampleTableBuilder
from dlio.dataset.schema import IMAGE_CLASSIFICATION, ImageInfo, Schema
from dlio.formats.recordio import MAGIC

IMAGES = [bytes([number]) * (97 * number % 5003 + 1) for number in range(90)]


def group_of(images: list[bytes], labels: list[int]) -> SampleGroup:
    keys = [f"class/{number:04}.png" for number in range(len(images))]
    infos = [ImageInfo("PNG", 32, 30 + number % 3, 3) for number in range(len(images))]
    return SampleGroup(keys, {"image": images, "label": labels}, infos)


def written(folder: Path, name: str, write: Callable[[formats.Writer], None]) -> dict[str, bytes]:
    folder.mkdir()
    pytest.importorskip("h5py") if name == "hdf5" else None
    with closing(formats.load(name).Writer(folder / "shard", IMAGE_CLASSIFICATION)) as writer:
        write(writer)
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", formats.names())
def test_a_group_is_written_as_its_samples_are(name: str, tmp_path: Path) -> None:
    groups = [group_of(IMAGES[:2], [0, 1]), group_of(IMAGES, [number % 300 for number in range(len(IMAGES))])]

    def grouped(writer: formats.Writer) -> None:
        assert isinstance(writer, formats.GroupWriter)
        assert all(writer.write_group(group) for group in groups)

    def single(writer: formats.Writer) -> None:
        for group in groups:
            for sample in group:
                writer.write(sample)

    assert written(tmp_path / "grouped", name, grouped) == written(tmp_path / "single", name, single)


@pytest.mark.parametrize(
    ("name", "images", "labels"),
    [
        ("recordio", [b"image", b"1234" + MAGIC.to_bytes(4, "little") + b"more"], [0, 1]),
        ("recordio", [b"image", b"other"], [0, (1 << 24) + 1]),
        ("lmdb", [b"image", b"other"], [0, 1 << 31]),
    ],
)
def test_a_group_with_an_unusual_sample_is_left_to_write(
    name: str, images: list[bytes], labels: list[int], tmp_path: Path
) -> None:
    def refused(writer: formats.Writer) -> None:
        assert isinstance(writer, formats.GroupWriter)
        assert not writer.write_group(group_of(images, labels))

    assert written(tmp_path / "refused", name, refused) == written(tmp_path / "none", name, lambda writer: None)


@given(st.lists(st.tuples(st.binary(max_size=40), st.integers(-(1 << 63), (1 << 63) - 1), st.binary()), min_size=1))
def test_the_table_of_a_group_is_that_of_its_samples(rows: list[tuple[bytes, int, bytes]]) -> None:
    schema = Schema.of({"image": "bytes", "label": "int64", "mask": "bytes"})
    columns = [list(column) for column in zip(*rows, strict=True)]
    group = SampleGroup([str(number) for number in range(len(rows))], dict(zip(schema, columns, strict=True)))
    assert group.follows(schema)
    assert crc32c_of_group(group, schema) == [crc32c(sample, schema) for sample in group]
    grouped, single = SampleTableBuilder(schema), SampleTableBuilder(schema)
    grouped.extend(group)
    for sample in group:
        single.append(sample)
    assert grouped.to_bytes() == single.to_bytes()


@pytest.mark.parametrize("label", [1 << 63, 1.0, True, "1"])
def test_a_group_with_another_type_does_not_follow(label: object) -> None:
    assert not SampleGroup(["a"], {"image": [b""], "label": [label]}).follows(IMAGE_CLASSIFICATION)
    assert not SampleGroup(["a"], {"image": [b""]}).follows(IMAGE_CLASSIFICATION)
