"""Every format that dlio reads and never writes: what its readers promise; it stages and loads like any other."""

from __future__ import annotations

import multiprocessing
import random
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest

import dlio
from dlio import formats
from dlio.cli import main
from dlio.dataset.manifest import Manifest
from dlio.dataset.schema import IMAGE_CLASSIFICATION
from dlio.errors import SchemaError, StorageError
from dlio.pack.index import index, names
from tests.helpers.adopted import JPEGS, batch
from tests.helpers.packing import samples


def array_record(folder: Path) -> None:
    pytest.importorskip("array_record")
    from tests.pack.index.test_array_record import NAME, write

    write(folder / NAME)


def litdata(folder: Path) -> None:
    from tests.helpers.litdata import write_chunk

    rows = [[data, (number % 3).to_bytes(8, "little")] for number, data in enumerate(JPEGS)]
    write_chunk(folder, rows, {"image": "jpeg", "label": "int"})


def mds(folder: Path) -> None:
    from tests.pack.index.test_mds import write_mds

    rows = [[data, (number % 3).to_bytes(8, "little")] for number, data in enumerate(JPEGS)]
    write_mds(folder / "shard.00000.mds", {"image": ("jpeg", None), "label": ("int", 8)}, rows)


def parquet(folder: Path) -> None:
    from tests.helpers import arrow

    arrow.write_new(folder / "train-00000-of-00001.parquet", arrow.table(0, 9, ("image", "label")))


#: By the name of a format, what writes nine images with the labels 0, 1, 2, 0, ... as its own tools do.
WRITERS: dict[str, Callable[[Path], None]] = {each.__name__: each for each in (array_record, litdata, mds, parquet)}
EXPECTED = [{"image": data, "label": number % 3} for number, data in enumerate(JPEGS)]


def _reads_the_same(name: str, path: Path) -> None:
    with closing(formats.load(name).Reader(path, IMAGE_CLASSIFICATION)) as reader:
        assert [reader.read(number).fields for number in reversed(range(9))] == EXPECTED[::-1]


def test_every_read_only_format_is_held_and_can_be_indexed() -> None:
    loose = "files"  # tests/pack/test_loose.py: no other tool writes it
    assert sorted([*WRITERS, loose]) == formats.read_only_names()
    assert set(WRITERS) <= set(names())


@pytest.mark.parametrize("name", WRITERS)
class TestEveryAdoptedFormat:
    @pytest.fixture
    def folder(self, name: str, tmp_path: Path) -> Path:
        (tmp_path / "theirs").mkdir()
        WRITERS[name](tmp_path / "theirs")
        index(tmp_path / "theirs", format=name, workers=1)
        return tmp_path / "theirs"

    def test_a_reader_serves_threads_and_children_and_leaves_nothing_open(self, name: str, folder: Path) -> None:
        path = folder / Manifest.load(folder).shards[0].files[0].name
        module = formats.load(name)
        reader = module.Reader(path, IMAGE_CLASSIFICATION)
        order = [number for number in range(9) for _ in range(5)]
        random.Random(3).shuffle(order)
        with ThreadPoolExecutor(4) as pool:
            assert [found.fields for found in pool.map(reader.read, order)] == [EXPECTED[n] for n in order]
        child = multiprocessing.get_context("fork").Process(target=_reads_the_same, args=(name, path))
        child.start()
        child.join()
        assert child.exitcode == 0
        assert {reader.locate(number)[0] for number in range(len(reader))} == {path}
        reader.close()
        reader.close()
        links = [entry.readlink() for entry in Path("/proc/self/fd").iterdir() if entry.is_symlink()]
        assert not [link for link in links if link.is_relative_to(folder)]

    def test_it_is_not_written_and_a_missing_file_is_a_storage_error(self, name: str, folder: Path) -> None:
        with pytest.raises(SchemaError, match="dlio can only read"):
            formats.require(name, IMAGE_CLASSIFICATION)
        with pytest.raises(StorageError, match="absent"):
            formats.load(name).Reader(folder / "absent", IMAGE_CLASSIFICATION)

    def test_it_is_staged_and_loaded(self, name: str, folder: Path, tmp_path: Path) -> None:
        assert main(["verify", str(folder)]) == 0
        staged = dlio.stage(folder, tmp_path / "local").root
        assert staged != folder
        assert [fields for _, fields in samples(staged)] == EXPECTED
        assert batch(staged, [8, 0, 4])["label"].tolist() == [2, 0, 1]
