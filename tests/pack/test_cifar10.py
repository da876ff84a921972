"""CIFAR-10's Python batches, made here as their owner publishes them, pickled again, and hostile."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import dlio
from dlio.errors import SourceError, UsageError
from dlio.sources import cifar10, open_source
from tests.helpers.cifar10 import python2_batch
from tests.helpers.packing import read_all


class FalseObjects:
    """Pickled as an array of objects whose type says that it has none: eight bytes that numpy takes for a pointer."""

    def __reduce__(self):
        state = 1, (1,), FalseType(), False, b"A" * 8
        return np.zeros(0).__reduce__()[0], (np.ndarray, (0,), b"b"), state


class FalseType:
    def __reduce__(self):
        return np.dtype, ("O8", False, True), (3, "|", None, None, None, -1, -1, 1)


def write_batch(path: Path, data: np.ndarray, labels: list[int], protocol: int = 3) -> None:
    path.write_bytes(pickle.dumps({b"data": data, b"labels": labels}, protocol=protocol))


class TestCifar10:
    @pytest.fixture
    def batches(self, tmp_path) -> Path:
        random = np.random.default_rng(0)
        for name in [f"data_batch_{number}" for number in range(1, 6)] + ["test_batch"]:
            data = random.integers(0, 256, (7, 3072), dtype="uint8")
            (tmp_path / name).write_bytes(python2_batch(data, random.integers(0, 10, 7).tolist()))
        meta = {b"label_names": [f"class {number}".encode() for number in range(10)]}
        (tmp_path / "batches.meta").write_bytes(pickle.dumps(meta, protocol=2))
        return tmp_path

    @pytest.mark.parametrize("split", ["train", "test"])
    def test_images_are_the_planes_of_the_rows(self, batches, split):
        names = ["test_batch"] if split == "test" else [f"data_batch_{number}" for number in range(1, 6)]
        loaded = [pickle.loads((batches / name).read_bytes(), encoding="bytes") for name in names]
        expected = np.concatenate([batch[b"data"] for batch in loaded]).reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
        labels = [label for batch in loaded for label in batch[b"labels"]]
        for form in ("png", "raw"):
            fields = read_all(open_source(batches, split=split, form=form))
            found = [np.asarray(Image.open(io.BytesIO(f["image"]))) if form == "png" else f["image"] for f in fields]
            np.testing.assert_array_equal(np.stack(found), expected)
            assert [f["label"] for f in fields] == labels

    @pytest.mark.parametrize("form", ["png", "raw"])
    def test_is_packed_shuffled(self, batches, tmp_path, form):
        source = cifar10(batches, form=form)
        manifest = dlio.pack(source, tmp_path / "out", shuffle=1, num_shards=3, workers=2)
        assert manifest.num_samples == 35
        assert manifest.class_names[3] == "class 3"
        assert source.listing().keys[8] == "data_batch_2/00001"

    @pytest.mark.parametrize("protocol", [3, 4, 5])
    @pytest.mark.parametrize("number", [int, np.int64])
    def test_batches_that_were_pickled_anew_are_read(self, batches, protocol, number):
        data = np.arange(2 * 3072).astype("uint8").reshape(2, 3072)
        write_batch(batches / "test_batch", data, [number(1), number(2)], protocol)
        fields = read_all(cifar10(batches, split="test", form="raw"))
        assert fields[1]["image"][0, 0].tolist() == data[1, [0, 1024, 2048]].tolist()
        assert [found["label"] for found in fields] == [1, 2]

    @pytest.mark.parametrize("protocol", [0, 1, 2])
    def test_pixels_that_are_in_pieces_are_refused_with_advice(self, batches, protocol):
        write_batch(batches / "test_batch", np.arange(2 * 3072).astype("uint8").reshape(2, 3072), [1, 2], protocol)
        with pytest.raises(SourceError, match=r"test_batch does not keep its pixels .* pickle it by 3 or later"):
            cifar10(batches, split="test").listing()

    def test_a_pickle_that_runs_something_is_refused(self, batches, tmp_path):
        class Evil:
            def __reduce__(self):
                return os.mkdir, (str(tmp_path / "owned"),)

        (batches / "data_batch_3").write_bytes(pickle.dumps({b"data": Evil(), b"labels": []}))
        with pytest.raises(SourceError, match=r"data_batch_3 is not a batch of CIFAR-10: it would run posix\.mkdir"):
            cifar10(batches).listing().check_whole()
        assert not (tmp_path / "owned").exists()

    @pytest.mark.parametrize(
        "content",
        [
            b"",
            b"no pickle",
            pickle.dumps([1]),
            pickle.dumps({b"data": 5, b"labels": [1]}),
            pickle.dumps({b"data": np.zeros((2, 3), "uint8"), b"labels": [1, 2]}),
            pickle.dumps({b"data": np.zeros((2, 3072), "uint8"), b"labels": [1]}),
            pickle.dumps({b"data": np.zeros((2, 3072), "uint8"), b"labels": [1, "x"]}),
            pickle.dumps({b"data": np.zeros((2, 3072), "uint8"), b"labels": [1, 10]}),
            b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n(I1000000000000\ntS'b'\ntR.",
            b"cnumpy\nndarray\n((I1000000000000\nttR.",
            pickle.dumps({b"data": FalseObjects(), b"labels": [1]}),
        ],
    )
    def test_anything_else_is_refused_by_name(self, batches, content):
        (batches / "data_batch_1").write_bytes(content)
        with pytest.raises(SourceError, match=str(batches)):
            cifar10(batches).listing().check_whole()

    def test_unknown_options_are_refused(self, batches):
        with pytest.raises(UsageError, match="split=train or test"):
            open_source(batches, split="validation")
        with pytest.raises(UsageError, match="no option 'shape', only split, form"):
            open_source(batches, shape="3")
