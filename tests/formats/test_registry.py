"""Formats by name: which modules may be imported, by which others, and what a module of another package can do."""

from __future__ import annotations

import json
import sys
from contextlib import closing

import pytest

from dlio import formats
from dlio.cli import main
from dlio.dataset.schema import IMAGE_CLASSIFICATION
from dlio.errors import UsageError
from dlio.loaders.dataset import PackedSamples
from tests.helpers.images import make_image_folder

THEIRS = """
from dlio.dataset.schema import Sample
from dlio.formats import open_plain
from dlio.io.random_access import RandomAccessFile

SUFFIX = ".hex"


def refuses(schema):
    return None if schema.is_image_classification else "it holds images with a label only"


class Writer:
    def __init__(self, stem, schema, open_file=open_plain):
        self._file = open_file(stem.with_name(stem.name + SUFFIX))

    def write(self, sample):
        self._file.write(b"%d %s\\n" % (sample.fields["label"], sample.fields["image"].hex().encode()))

    def close(self):
        self._file.close()


class Reader:
    def __init__(self, path, schema):
        with open(path, "rb") as file:
            self._path, self._lines = path, file.read().splitlines()

    def __len__(self):
        return len(self._lines)

    def read(self, index):
        label, image = self._lines[index].decode().split()
        return Sample("", {"image": bytes.fromhex(image), "label": int(label)})

    def locate(self, index):
        return self._path, None

    def close(self):
        pass
"""


@pytest.fixture
def their_package(tmp_path, monkeypatch):
    """Another package with a format, and a module that is not a format."""
    (tmp_path / "theirs_of_a_test").mkdir()
    (tmp_path / "theirs_of_a_test" / "__init__.py").write_text("")
    (tmp_path / "theirs_of_a_test" / "container.py").write_text(THEIRS)
    (tmp_path / "theirs_of_a_test" / "other.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    yield "theirs_of_a_test"
    for name in [name for name in sys.modules if name.startswith("theirs_of_a_test")]:
        del sys.modules[name]


def test_a_name_from_a_file_never_imports_another_package(their_package):
    with pytest.raises(UsageError, match=r"import theirs_of_a_test\.container"):
        formats.load(f"{their_package}.container")
    assert their_package not in sys.modules


def test_a_name_from_the_user_imports_another_package(their_package):
    name = f"{their_package}.container"
    assert formats.require(name, IMAGE_CLASSIFICATION) is sys.modules[name]
    assert formats.load(name) is sys.modules[name]


@pytest.mark.parametrize("name", ["", ".", "..", "os.path", "no.such.module", "gzip", "_index", "payloads", "a b.c"])
def test_what_is_no_format_is_refused(name):
    with pytest.raises(UsageError, match=r"is not a format|cannot be imported"):
        formats.import_format(name)


def test_a_module_that_is_no_format_is_refused(their_package):
    with pytest.raises(UsageError, match=r"other.*lacks SUFFIX, refuses, Writer, Reader"):
        formats.import_format(f"{their_package}.other")


def test_another_packages_format_packs_verifies_stages_and_loads(their_package, tmp_path, capsys):
    source, packed, staged = (tmp_path / name for name in ("images", "packed", "staged"))
    make_image_folder(source, {"cat": 3, "dog": 2})
    name = f"{their_package}.container"
    assert main(["pack", str(source), str(packed), "--format", name, "--workers", "1", "--quiet"]) == 0
    assert len(list(packed.glob("*.hex"))) == 1
    for words in (["verify", str(packed)], ["info", str(packed)]):
        capsys.readouterr()
        assert main([*words, "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
    assert (report["format"], report["samples"]) == (name, 5)
    assert main(["stage", str(packed), str(staged), "--quiet"]) == 0
    copy = next(staged.rglob("manifest.jsonl")).parent
    images = sorted(path.read_bytes() for path in source.rglob("*.png"))
    with closing(PackedSamples(copy)) as loaded:
        assert sorted(sample.fields["image"] for sample in loaded.read(range(5))) == images
        assert loaded.labels.tolist() == [0, 0, 0, 1, 1]
