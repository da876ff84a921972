"""Lists of images that lie where they are: a damaged list is an error, and none names a file outside of its folder."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dlio.dataset.schema import IMAGE_CLASSIFICATION, Schema
from dlio.errors import CorruptRecordError, DlioError, SchemaError
from dlio.formats.layouts.file_list import FileList, is_inside
from dlio.formats.readonly import files as loose


def made_list(tmp_path: Path, names: list[bytes]) -> Path:
    sizes = np.full(len(names), 3, np.int64)
    column = np.arange(len(names), dtype=np.int64)
    made = FileList(Path(), sizes, sizes, np.cumsum([len(name) for name in names]), b"".join(names), (column,))
    (tmp_path / "shard-000000.list").write_bytes(made.to_bytes())
    return tmp_path / "shard-000000.files"


@pytest.mark.parametrize("name", ["../secret", "/etc/hostname", "a/../../secret", "a\0b"])
def test_a_list_leads_nowhere_else(tmp_path, name):
    assert not is_inside(name)
    (tmp_path / "files").symlink_to(tmp_path)
    reader = loose.Reader(made_list(tmp_path, [b"good", name.encode()]), IMAGE_CLASSIFICATION)
    with pytest.raises(CorruptRecordError, match="points outside"):
        reader.read(1)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_damaged_list_is_an_error_or_gives_other_names_only(tmp_path_factory, data):
    folder = tmp_path_factory.mktemp("list")
    path = made_list(folder, [b"a/b.png", b"c.png"])
    listed = path.with_suffix(".list")
    text = bytearray(listed.read_bytes())
    if data.draw(st.booleans()):
        text = text[: data.draw(st.integers(0, len(text) - 1))]
    else:
        text[data.draw(st.integers(0, len(text) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    listed.write_bytes(text)
    (folder / "files").symlink_to(folder)
    try:
        reader = loose.Reader(path, IMAGE_CLASSIFICATION)
    except CorruptRecordError as error:
        assert str(listed) in str(error)
    else:
        for number in range(len(reader)):
            with pytest.raises(DlioError):
                reader.read(number)


def test_other_schemas_and_damaged_copies_are_refused(tmp_path):
    path = made_list(tmp_path, [b"a", b"b"])
    for types in ({"label": "int64"}, {"a": "bytes", "b": "bytes"}, {"a": "bytes", "b": "str"}):
        with pytest.raises(SchemaError, match="expected one field of bytes for the file"):
            loose.Reader(path, Schema.of(types))
    with pytest.raises(CorruptRecordError, match="its fields are"):
        loose.Reader(path, Schema.of({"image": "bytes", "label": "float32"}))
    with pytest.raises(CorruptRecordError, match=r"the link .*/files, to the folder of the files, is lost"):
        loose.Reader(path, IMAGE_CLASSIFICATION).read(0)
    path.write_bytes(b"abcde")
    with pytest.raises(CorruptRecordError, match="its list counts 6 bytes, the file has 5"):
        loose.Reader(path, IMAGE_CLASSIFICATION)
    path.write_bytes(b"abcdef")
    with closing(loose.Reader(path, IMAGE_CLASSIFICATION)) as reader:
        assert reader.read(1).fields == {"image": b"def", "label": 1} and reader.locate(1) == (path, 3)
