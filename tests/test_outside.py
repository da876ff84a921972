"""A source, an engine and a format with its shard layout, each one module of another package, through the main job."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from dlio.cli import main
from dlio.dataset.manifest import Manifest
from tests.helpers.images import image, make_image_folder
from tests.helpers.packing import samples

#: One image in a file, as a source of another package.
SOURCE = """
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
import numpy as np
from dlio.dataset.schema import IMAGE_CLASSIFICATION, Sample
from dlio.pack.listing.base import Listing
from dlio.pack.listing.keys import Keys

def open_source(path, label="0"):
    return OneImage(path, int(label))

@dataclass(frozen=True)
class OneImage:
    path: Path
    label: int
    name: str = "one-image"

    def listing(self):
        return Listing(IMAGE_CLASSIFICATION, Keys.of([self.path.name]), np.zeros(1, "int64"), {})

    def reader(self, listing):
        fields = {"image": self.path.read_bytes(), "label": self.label}
        return nullcontext(lambda index: Sample(listing.keys[index], fields))
"""

#: Threads, as an engine of another package.
ENGINE = """
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dlio.executors import Pool, num_workers, refuse_address

@contextmanager
def open(workers, address):
    refuse_address("threads", address)
    with ThreadPoolExecutor(num_workers(workers)) as executor:
        yield Pool(executor, num_workers(workers))
"""

#: TFRecord under another suffix, as a format of another package, with the layout of other tools' shards.
FORMAT = """
from dlio.formats.tfrecord import Reader, Writer, refuses
from dlio.pack.index import tfrecord
from dlio.pack.index.tfrecord import infer, keys

SUFFIX = ".tfrecord"

def files(path):
    return tfrecord.files(path) if path.suffix == SUFFIX else ()
"""


@pytest.fixture
def another_package(tmp_path, monkeypatch) -> Path:
    """A package `outside` with a source, an engine and a format, which Python can import."""
    package = tmp_path / "site" / "outside"
    package.mkdir(parents=True)
    for name, text in {"__init__": "", "one_image": SOURCE, "threads": ENGINE, "records": FORMAT, "empty": ""}.items():
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(package.parent)
    yield package
    for name in [name for name in sys.modules if name.partition(".")[0] == "outside"]:
        del sys.modules[name]


def test_source_engine_and_format_pack_verify_and_load(another_package, tmp_path):
    (tmp_path / "x.png").write_bytes(image(1))
    words = ["--source", "outside.one_image", "--option", "label=3", "--engine", "outside.threads", "--workers", "2"]
    out = str(tmp_path / "out")
    assert main(["pack", str(tmp_path / "x.png"), out, *words, "--format", "outside.records", "--quiet"]) == 0
    assert main(["verify", out, "--decode", "--quiet"]) == 0
    assert samples(tmp_path / "out") == [("x.png", {"image": image(1), "label": 3})]
    assert Manifest.load(tmp_path / "out").format == "outside.records"


def test_shards_of_a_layout_are_indexed_and_loaded(another_package, tmp_path):
    make_image_folder(tmp_path / "in", {"a": 3, "b": 2})
    packed = str(tmp_path / "packed")
    assert main(["pack", str(tmp_path / "in"), packed, "--format", "tfrecord", "--engine", "serial", "--quiet"]) == 0
    (tmp_path / "shards").mkdir()
    (tmp_path / "packed/shard-000000.tfrecord").rename(tmp_path / "shards/mine.tfrecord")
    assert main(["index", str(tmp_path / "shards"), "--format", "outside.records", "--quiet"]) == 0
    assert [fields["label"] for _, fields in samples(tmp_path / "shards")] == [0, 0, 0, 1, 1]


@pytest.mark.parametrize("option", ["--source", "--engine", "--format"])
@pytest.mark.parametrize(("module", "problem"), [("outside.gone", "No module named"), ("outside.empty", "lacks ")])
def test_a_module_that_cannot_serve_is_named(another_package, tmp_path, capsys, option, module, problem):
    make_image_folder(tmp_path / "in", {"a": 1})
    words = ["pack", str(tmp_path / "in"), str(tmp_path / "out"), "--format", "tfrecord", "--engine", "serial"]
    assert main([*words, option, module]) == 2
    said = capsys.readouterr().err
    assert repr(module) in said
    assert problem in said or option == "--format"
    assert not (tmp_path / "out").exists()
