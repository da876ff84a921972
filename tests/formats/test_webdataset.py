"""WebDataset's tars against Python's tarfile, GNU tar and DALI's index."""

from __future__ import annotations

import io
import subprocess
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlio.dataset.schema import Sample, Schema
from dlio.formats import webdataset
from tests.formats.webdataset_tars import JPEG, labelled, read, tar, write


def _pairs(keys):
    return [(f"{key}.{kind}", data) for n, key in enumerate(keys) for kind, data in (("jpg", JPEG), ("cls", b"%d" % n))]


def test_tarfile_reads_every_header(tmp_path):
    long = "f" * 90 + "/" + "g" * 80
    path = write(tmp_path, labelled(["a/é.jpg", long + ".jpg"]))
    with tarfile.open(path) as archive:
        infos = archive.getmembers()
        assert archive.extractfile(infos[0]).read() == JPEG + b"0"
    assert [info.name for info in infos] == ["a/é.jpg", "a/é.cls", f"{long}.jpg", f"{long}.cls"]
    assert {(info.mtime, info.mode, info.uname, info.gname, info.uid, info.type) for info in infos} == {
        (0, 0o444, "bigdata", "bigdata", 0, tarfile.REGTYPE)
    }
    assert path.stat().st_size == 4 * 1024 + 1024  # a header and a block each, no extra headers; the end mark


def test_a_header_is_the_one_that_tarfile_writes(tmp_path):
    path = write(tmp_path, labelled(["key"]))
    info = tarfile.TarInfo("key.jpg")
    info.size, info.mode, info.uname, info.gname = 5, 0o444, "bigdata", "bigdata"
    written, expected = path.read_bytes()[:512], info.tobuf(tarfile.USTAR_FORMAT)
    unlike = {at for at in range(512) if written[at] != expected[at]}
    assert unlike <= {*range(148, 156), *range(329, 345)}  # device numbers, for which a Python may write no digits


def test_gnu_tar_lists_and_extracts(tmp_path):
    path = write(tmp_path, labelled(["a/1.jpg", "b/2.jpg"]))
    listed = subprocess.run(["tar", "-tf", str(path)], capture_output=True, text=True, check=True)
    assert listed.stdout.split() == ["a/1.jpg", "a/1.cls", "b/2.jpg", "b/2.cls"]
    assert not listed.stderr


def test_the_index_is_dalis(tmp_path):
    path = write(tmp_path, labelled(["a/1.jpg", "a 2.jpg"]))
    with tarfile.open(path) as archive:
        words = [
            f"{info.name.partition('.')[2]} {info.offset_data} {info.size} {info.name}" for info in archive.getmembers()
        ]
    lines = [" ".join(words[:2]), " ".join(words[2:])]
    assert path.with_suffix(".idx").read_text().splitlines() == ["v1.2 2", *lines]


@pytest.mark.parametrize(
    ("key", "legal"),
    [
        ("cat/1.jpg", "cat/1"),
        ("cat/1.JPEG", "cat/1"),
        ("cat/1.v2.png", "cat/1_v2"),
        ("cat/1.txt", "cat/1_txt"),
        ("a.b/c", "a.b/c"),
        (".jpg", "jpg"),
        ("a/.hidden.jpg", "a/_hidden"),
        ("/etc/../passwd", "etc/_/passwd"),
        ("./a//b", "a/b"),
        ("..", "_"),
        ("/", "_"),
        ("__meta__/x", "meta__/x"),
        ("a b\n\tc\0\x7f\u2028", "a_b__c___"),
        ("\ud800", "_"),
        ("猫/🙂.webp", "猫/🙂"),
    ],
)
def test_the_key_rule(key, legal):
    assert webdataset.legal_key(key).decode() == legal


@given(keys=st.lists(st.text(min_size=1), min_size=1, max_size=8))
def test_names_are_legal_and_distinct_for_any_keys(keys, tmp_path_factory):
    keys = [*keys, *keys]
    folder = tmp_path_factory.mktemp("any")
    path = write(folder, labelled(keys))
    with tarfile.open(path) as archive:
        names = archive.getnames()
    assert len(set(names)) == 2 * len(keys)
    for name in names:
        folders, _, base = name.rpartition("/")
        assert base.count(".") == 1
        assert not base.startswith(".")
        assert not name.startswith(("/", "__"))
        assert not {".", "..", ""} & set(folders.split("/") if folders else [])
        assert not any(letter.isspace() for letter in name)
    found = read(path)
    assert [sample.fields["label"] for sample in found] == list(range(len(keys)))
    path.with_suffix(".idx").unlink()
    assert read(path) == found


@pytest.mark.parametrize(
    ("image", "name"),
    [
        (b"\xff\xd8\xff\xe0", "k.jpg"),
        (b"\x89PNG\r\n\x1a\n", "k.png"),
        (b"GIF89a", "k.gif"),
        (b"RIFF\0\0\0\0WEBPVP8 ", "k.webp"),
        (b"II*\0", "k.tif"),
        (b"P6\n1 1", "k.ppm"),
        (b"BM\x10\0\0\0\0\0\0\0", "k.bmp"),
        (b"BMx", "k.image.bin"),
        (b"", "k.image.bin"),
    ],
)
def test_an_image_is_named_by_its_magic(image, name, tmp_path):
    path = write(tmp_path, [Sample("k", {"image": image, "label": 0})])
    with tarfile.open(path) as archive:
        assert archive.getnames() == [name, "k.cls"]
    assert read(path)[0].fields["image"] == image


def test_lists_are_numbered_files(tmp_path):
    schema = Schema.of({"frames": "bytes[]", "words": "str[]"})
    frames = [JPEG, b"\x89PNG\r\n\x1a\n", b"raw"]
    path = write(tmp_path, [Sample("k", {"frames": frames, "words": []})], schema)
    with tarfile.open(path) as archive:
        names = archive.getnames()
    assert names == ["k.frames.000000.jpg", "k.frames.000001.png", "k.frames.000002.bin", "k.words.empty"]


@pytest.mark.parametrize(
    "types",
    [
        {},
        {"x" * 49: "bytes"},
        {"Image": "bytes", "image": "bytes"},
    ],
)
def test_refusals(types):
    reason = webdataset.refuses(Schema.of(types))
    assert reason
    assert all(repr(name) in reason for name in types)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("keys", [["a", "b"], ["./d/ä", "./d/b"], ["x" * 98 + "a", "x" * 98 + "b"], ["y" * 300, "z"]])
def test_tars_of_other_tools(form, keys, tmp_path):
    if form == tarfile.USTAR_FORMAT and len(keys[0]) > 90:
        pytest.skip("ustar has no such names")
    path = tar(tmp_path / "other.tar", _pairs(keys), format=form)
    found = read(path)
    assert [(sample.key, sample.fields["label"]) for sample in found] == [(keys[0], 0), (keys[1], 1)]

    with tarfile.open(path) as archive:
        infos = archive.getmembers()
    words = [f"{i.name.rpartition('.')[2]} {i.offset_data} {i.size} {i.name}" for i in infos]
    path.with_suffix(".idx").write_text("\n".join(["v1.2 2", " ".join(words[:2]), " ".join(words[2:]), ""]))
    assert read(path) == found
    short = [f"{i.name.rpartition('.')[2]} {i.offset_data} {i.size}" for i in infos]
    path.with_suffix(".idx").write_text("\n".join(["v1.1 2", " ".join(short[:2]), " ".join(short[2:]), ""]))
    assert read(path) == found


def test_what_belongs_to_no_sample_is_passed_over(tmp_path):
    path = tmp_path / "other.tar"
    with tarfile.open(path, "w") as archive:
        folder = tarfile.TarInfo("a")
        folder.type = tarfile.DIRTYPE
        link = tarfile.TarInfo("a/link.jpg")
        link.type, link.linkname, link.size = tarfile.SYMTYPE, "elsewhere", 0
        archive.addfile(folder)
        archive.addfile(link)
        others = [("README", b"r"), (".DS_Store", b"d"), ("__info__/x.jpg", b"m")]
        for name, data in [*others, ("a/1.JPG", JPEG), ("a/1.notes.md", b"n"), ("a/1.cls", b" 7\n")]:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    (found,) = read(path)
    assert (found.key, found.fields) == ("a/1", {"image": JPEG, "label": 7})
