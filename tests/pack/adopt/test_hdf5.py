"""HDF5 files as people write them with h5py."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from dlio.errors import SchemaError
from dlio.pack.adopt import index
from tests.pack.adopt.conftest import JPEGS, adopt, batch


class TestHDF5:
    """Files as people write them with h5py."""

    @pytest.mark.parametrize(("images", "labels"), [("image", "label"), ("images", "labels"), ("x", "y")])
    def test_encoded_images_as_arrays_of_varying_length(self, tmp_path, images, labels):
        with h5py.File(tmp_path / "train.hdf5", "w") as file:
            column = file.create_dataset(images, (4,), dtype=h5py.vlen_dtype(np.uint8))
            for number in range(4):
                column[number] = np.frombuffer(JPEGS[number], "uint8")
            file[labels] = np.arange(4, dtype="uint8")
            file["class_weights"] = np.zeros(7)
        manifest, found = adopt(tmp_path, "hdf5")
        assert manifest.schema.is_image_classification
        assert found == [(f"train.hdf5/{n:06d}", {"image": JPEGS[n], "label": n}) for n in range(4)]
        assert batch(tmp_path, [3])["label"].tolist() == [3]

    def test_plain_arrays_as_caffe_reads_them(self, tmp_path):
        data = np.arange(48, dtype="float32").reshape(2, 3, 2, 4)
        for number in range(2):
            with h5py.File(tmp_path / f"train{number}.h5", "w") as file:
                file["data"] = data + number
                file.create_dataset("label", data=np.array([1, 2], "float32"), chunks=(1,), compression="gzip")
        manifest, found = adopt(tmp_path, "hdf5")
        assert manifest.schema.types() == {"image": "float32[3,2,4]", "label": "float32"}
        assert [fields["label"] for _, fields in found] == [1, 2, 1, 2]
        np.testing.assert_array_equal(found[3][1]["image"], data[1] + 1)

    def test_files_of_other_layouts_are_named(self, tmp_path):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["train/images"] = np.zeros((3, 2))
        with pytest.raises(SchemaError, match=r"a\.h5 has no datasets at its root, only \['train'\]"):
            index(tmp_path, format="hdf5")
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["image"] = np.zeros(3, dtype=[("a", "i4"), ("b", "f4")])
        with pytest.raises(SchemaError, match=r"a\.h5: the dataset 'image' holds .*numbers, uint8 and strings"):
            index(tmp_path, format="hdf5")
