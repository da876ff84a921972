"""Samples written in groups: the same bytes as one by one, and a group is written whole or not at all."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio import formats, native
from dlio.dataset.checksum import crc32c, crc32c_of_group
from dlio.dataset.sample_group import Pieces, SampleGroup, interleave
from dlio.dataset.sample_table import SampleTableBuilder
from dlio.dataset.schema import IMAGE_CLASSIFICATION, ImageInfo, Schema
from dlio.formats.recordio import MAGIC

pytestmark = pytest.mark.skipif(not native.available, reason="the compiled core is not installed")
IMAGES = [bytes([number]) * (97 * number % 5003 + 1) for number in range(90)]


def group_of(images: list[bytes], labels: list[int], first: int = 0) -> SampleGroup:
    keys = [f"class/{number:04}.png" for number in range(first, first + len(images))]
    infos = [ImageInfo("PNG", 32, 30 + number % 3, 3) for number in range(len(images))]
    return SampleGroup(pieces(keys), {"image": Pieces.of(images), "label": np.array(labels)}, infos)


def pieces(texts: list[str]) -> Pieces:
    return Pieces.of([text.encode() for text in texts])


def written(folder: Path, name: str, write: Callable[[formats.Writer], None]) -> dict[str, bytes]:
    folder.mkdir()
    pytest.importorskip("h5py") if name == "hdf5" else None
    with closing(formats.load(name).Writer(folder / "shard", IMAGE_CLASSIFICATION)) as writer:
        write(writer)
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", formats.names())
def test_a_group_is_written_as_its_samples_are(name: str, tmp_path: Path) -> None:
    groups = [group_of(IMAGES[:2], [0, 1]), group_of(IMAGES, [number % 300 for number in range(len(IMAGES))], 2)]

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
    images, labels, masks = zip(*rows, strict=True)
    fields = {"image": Pieces.of(images), "label": np.array(labels), "mask": Pieces.of(masks)}
    group = SampleGroup(pieces([str(number) for number in range(len(rows))]), fields)
    assert group.follows(schema)
    assert [tuple(sample.fields.values()) for sample in group] == rows
    assert crc32c_of_group(group).tolist() == [crc32c(sample, schema) for sample in group]
    grouped, single = SampleTableBuilder(schema), SampleTableBuilder(schema)
    grouped.extend(group)
    for sample in group:
        single.append(sample)
    assert grouped.to_bytes() == single.to_bytes()


@pytest.mark.parametrize("labels", [[1.0], [True], ["1"], [[1]], [1 << 63]])
def test_a_group_with_another_type_does_not_follow(labels: list[object]) -> None:
    images = Pieces.of([b""])
    assert not SampleGroup(pieces(["a"]), {"image": images, "label": np.array(labels)}).follows(IMAGE_CLASSIFICATION)
    assert not SampleGroup(pieces(["a"]), {"image": images}).follows(IMAGE_CLASSIFICATION)


@given(
    st.lists(st.tuples(st.binary(max_size=9), st.binary(max_size=9)), min_size=1), st.integers(1, 8), st.integers(0, 3)
)
def test_columns_are_interleaved_with_zeros(rows: list[tuple[bytes, bytes]], multiple: int, skipped: int) -> None:
    one, two = (Pieces.of([row[number] for row in rows]) for number in range(2))
    expected = b""
    for first, second in rows[min(skipped, len(rows) - 1) :]:
        expected += first + second + bytes(-len(first + second) % multiple)
    rest = slice(min(skipped, len(rows) - 1), len(rows))
    assert interleave((one.take(rest), 1), (two.take(rest), multiple)) == expected


def placed(values: list[bytes], offsets: list[int]) -> tuple[bytes, np.ndarray, np.ndarray]:
    return (found := Pieces.of(values)).data, found.bounds, np.array(offsets, np.int64)


def test_bounds_outside_the_data_are_refused() -> None:
    crcs = np.zeros(1, np.uint32)
    for bounds in ([0, 4], [-1, 1], [2, 1], []):
        with pytest.raises(ValueError, match="bounds"):
            Pieces(b"abc", np.array(bounds, np.int64)).extend(crcs)
    with pytest.raises(ValueError, match="crcs"):
        Pieces.of([b"a", b"b"]).extend(crcs)
    for offsets in ([3], [-1], [], [0, 0]):
        with pytest.raises(ValueError, match="offsets"):
            native.place(4, [placed([b"ab"], offsets)])
    with pytest.raises(ValueError, match="offsets"):
        native.place(1, [placed([b"ab"], [0])])


def test_pieces_are_placed_among_zeros() -> None:
    assert native.place(6, [placed([b"c", b""], [4, 6]), placed([b"ab"], [1])]) == b"\0ab\0c\0"
    assert native.place(0, []) == b""
