"""`dlio://DATASET/KEY`: fsspec's own suite as far as it concerns reading, and programs that take such paths."""

from __future__ import annotations

import errno
import pickle
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import md5
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.tests.abstract import AbstractFixtures, AbstractGetTests
from PIL import Image

import dlio
from dlio.dataset.manifest import Manifest
from dlio.dataset.schema import Sample, Schema
from dlio.errors import CorruptRecordError, UsageError
from dlio.look.filesystem import DlioFileSystem
from tests.helpers.images import make_image_folder
from tests.loaders.packing import damage, pack_samples

DATA = Schema.of({"data": "bytes"})


class TestReading(AbstractFixtures, AbstractGetTests):
    """The suite's trees of files, packed: what it writes on other file systems."""

    @pytest.fixture
    def fs(self) -> Iterator[DlioFileSystem]:
        view = DlioFileSystem(skip_instance_cache=True)
        yield view
        view.invalidate_cache()

    @pytest.fixture
    def fs_path(self, tmp_path: Path) -> str:
        return str(tmp_path)

    @pytest.fixture
    def local_fs(self) -> LocalFileSystem:
        return LocalFileSystem(auto_mkdir=True)

    @pytest.fixture
    def local_join(self) -> Callable[..., str]:
        return lambda *parts: "/".join(parts)

    @pytest.fixture
    def local_path(self, tmp_path_factory: pytest.TempPathFactory) -> str:
        return str(tmp_path_factory.mktemp("local"))

    def packed(self, root: str, files: dict[str, bytes]) -> str:
        samples = [Sample(f"source/{name}", {"data": data}) for name, data in files.items()]
        pack_samples(Path(root), DATA, samples, num_shards=2)
        return f"{root}/source"

    def test_get_directory_recursive(self, fs, fs_join, fs_path, local_fs, local_join, local_target, monkeypatch):
        """The suite's test, whose file is packed before."""
        pack_samples(Path(fs_path), DATA, [Sample("src/file", {"data": b""})], num_shards=1)
        for name in ("mkdir", "touch"):
            monkeypatch.setattr(fs, name, lambda path: None)
        super().test_get_directory_recursive(fs, fs_join, fs_path, local_fs, local_join, local_target)

    @pytest.fixture
    def fs_bulk_operations_scenario_0(self, fs_path: str) -> str:
        names = ["file1", "file2", "subdir/subfile1", "subdir/subfile2", "subdir/nesteddir/nestedfile"]
        return self.packed(fs_path, dict.fromkeys(names, b""))

    @pytest.fixture
    def fs_glob_edge_cases_files(self, fs_path: str) -> str:
        names = ["file1", "file2"]
        for folder in ("subdir0", "subdir1"):
            names += [f"{folder}/subfile1", f"{folder}/subfile2", f"{folder}/nesteddir/nestedfile"]
        return self.packed(fs_path, dict.fromkeys(names, b""))

    @pytest.fixture
    def fs_dir_and_file_with_same_name_prefix(self, fs_path: str) -> str:
        return self.packed(fs_path, {"subdir.txt": b"", "subdir/subfile.txt": b""})

    @pytest.fixture
    def fs_10_files_with_hashed_names(self, fs_path: str) -> str:
        return self.packed(fs_path, {f"{md5(str(i).encode()).hexdigest()}.txt": str(i).encode() for i in range(10)})


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    make_image_folder(tmp_path / "pets", {"cat": 20, "dog": 21})
    return tmp_path / "pets"


@pytest.fixture
def packed(photos: Path, tmp_path: Path) -> Manifest:
    return dlio.pack(dlio.sources.image_folder(photos), tmp_path / "packed", num_shards=7, engine="serial")


@pytest.fixture
def fs(packed: Any) -> Iterator[DlioFileSystem]:
    view = fsspec.filesystem("dlio", dataset=str(packed.root), skip_instance_cache=True)
    assert isinstance(view, DlioFileSystem)
    yield view
    view.invalidate_cache()


def test_it_is_the_tree_of_files_that_was_packed(fs, packed, photos):
    local = LocalFileSystem()
    names = {
        path.removeprefix(f"{photos}/"): size["size"] for path, size in local.find(str(photos), detail=True).items()
    }
    assert {path: each["size"] for path, each in fs.find("", detail=True).items()} == names
    assert all(fs.cat_file(name) == (photos / name).read_bytes() for name in names)
    for path in ("", "/", *{name.partition("/")[0] for name in names}):
        entries = fs.ls(path, detail=False)
        assert sorted(entries) == sorted(
            name.removeprefix(f"{photos}/") for name in local.ls(f"{photos}/{path}".rstrip("/"), detail=False)
        )
        assert fs.isdir(path) and not fs.isfile(path)
    some = next(iter(names))
    assert fs.info(some) == {"name": some, "size": names[some], "type": "file"} == fs.ls(some)[0]
    assert fs.cat_file(some, -9) == (photos / some).read_bytes()[-9:]
    assert fs.cat_file(some, 2, 9) == (photos / some).read_bytes()[2:9] and fs.exists(some)
    assert len(fs.glob("*/*.png")) == len(names)


def test_paths_begin_with_the_folder_of_a_data_set(packed, photos, tmp_path, monkeypatch):
    part = dlio.select(packed, tmp_path / "part", where=["label=1"])
    name = sorted(path.relative_to(photos) for path in photos.rglob("*.png"))[-1]
    with fsspec.open(f"dlio://{packed.root}/{name}") as file:
        assert np.asarray(Image.open(file)).shape[2] == 3
    monkeypatch.chdir(tmp_path)
    view = fsspec.filesystem("dlio", skip_instance_cache=True)
    found = view.find("dlio://part")
    assert len(found) == part.num_samples and all(path.startswith("part/") for path in found)
    assert view.info("part")["type"] == "directory"
    copy = pickle.loads(pickle.dumps(view))
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(copy.cat_file, found)) == [(photos / path[5:]).read_bytes() for path in found]
    for missing in ("part/none.png", "part/none/none.png", "elsewhere/x", f"{found[0]}/x"):
        assert not view.exists(missing)
        with pytest.raises(FileNotFoundError, match=r"no such sample|holds a data set"):
            view.open(missing)
    view.invalidate_cache()
    copy.invalidate_cache()


def test_pyarrow_reads_through_it(fs, photos):
    pyarrow_fs = pytest.importorskip("pyarrow.fs")
    through = pyarrow_fs.PyFileSystem(pyarrow_fs.FSSpecHandler(fs))
    files = [each for each in through.get_file_info(pyarrow_fs.FileSelector("", recursive=True)) if each.is_file]
    assert len(files) == 41
    with through.open_input_file(files[7].path) as file:
        assert file.read() == (photos / files[7].path).read_bytes() and file.size() == files[7].size


def test_nothing_is_written(fs):
    some = fs.find("")[0]
    calls = [
        lambda: fs.open(some, "wb"),
        lambda: fs.open(some, "ab"),
        lambda: fs.rm(some),
        lambda: fs.mkdir("new"),
        lambda: fs.makedirs("new/er"),
        lambda: fs.touch(some),
        lambda: fs.pipe_file(some, b""),
        lambda: fs.cp_file(some, "other"),
        lambda: fs.mv(some, "other"),
    ]
    for call in calls:
        with pytest.raises(OSError, match="read-only") as caught:
            call()
        assert caught.value.errno == errno.EROFS
    with pytest.raises(IsADirectoryError):
        fs.open("")
    with pytest.raises(NotImplementedError):
        fs.modified(some)


def test_other_fields_and_sizes(tmp_path):
    schema = Schema.of({"image": "bytes", "mask": "bytes", "note": "str", "label": "int64"})
    rows = [Sample(f"a/{n}", {"image": b"i" * n, "mask": b"m" * 2 * n, "note": "ä" * n, "label": n}) for n in range(4)]
    root = str(pack_samples(tmp_path / "many", schema, rows, num_shards=2).root)
    for field, content in (("image", b"iii"), ("mask", b"m" * 6), ("note", "äää".encode()), (None, b"iii")):
        view = DlioFileSystem(root, field, skip_instance_cache=True)
        assert view.cat_file("a/3") == content and view.size("a/3") == len(content)
        view.invalidate_cache()
    with pytest.raises(UsageError, match=r"give field=, one of image, mask, note"):
        DlioFileSystem(root, "label").ls("")
    numbers = pack_samples(tmp_path / "n", Schema.of({"label": "int64"}), [Sample("a", {"label": 1})], num_shards=1)
    with pytest.raises(UsageError, match="no field that files could hold"):
        DlioFileSystem(str(numbers.root)).ls("")


@pytest.mark.parametrize("keys", [["a", "a/b"], ["a/b", "a"], ["a//b"], ["/a"], ["a/.."], ["a/"], ["x", "x"]])
def test_keys_that_are_no_paths_together_are_named(tmp_path, keys):
    found = pack_samples(tmp_path / "p", DATA, [Sample(key, {"data": b""}) for key in keys], num_shards=1)
    with pytest.raises(UsageError, match="cannot be a path among the others"):
        DlioFileSystem(str(found.root)).ls("")


def test_damage_is_an_error(tmp_path):
    rows = [Sample(f"{n}", {"data": bytes(50)}) for n in range(3)]
    found = pack_samples(tmp_path / "p", DATA, rows, num_shards=1)
    damage(found, 1)
    view = DlioFileSystem(str(found.root), skip_instance_cache=True)
    assert view.cat_file("0") == bytes(50)
    with pytest.raises(CorruptRecordError, match="record 1"):
        view.cat_file("1")
    view.invalidate_cache()
