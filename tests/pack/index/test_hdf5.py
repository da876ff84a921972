"""HDF5 files as people write them with h5py."""

from __future__ import annotations

import h5py
import numpy as np
import pytest

from dlio.dataset.schema import Schema
from dlio.errors import CorruptRecordError, SchemaError
from dlio.pack.index import index
from tests.helpers.adopted import JPEGS, adopt, batch


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

    def test_labels_of_another_number_than_images_are_refused(self, tmp_path):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["images"] = np.zeros((3, 2, 2), "uint8")
            file["labels"] = np.arange(4)
        with pytest.raises(SchemaError, match=r"a\.h5: 'labels' has 4 rows, 'images' has 3: .*--schema"):
            index(tmp_path, format="hdf5")
        manifest, found = adopt(tmp_path, "hdf5", schema=Schema.of({"image": "uint8[2,2]"}))
        assert len(found) == manifest.num_samples == 3
        with pytest.raises(CorruptRecordError, match=r"different numbers of records.*'label': 4"):
            index(
                tmp_path,
                format="hdf5",
                overwrite=True,
                workers=1,
                schema=Schema.of({"image": "uint8[2,2]", "label": "int64"}),
            )

    @pytest.mark.parametrize(
        "link",
        [
            h5py.ExternalLink("b.h5", "labels"),
            h5py.ExternalLink("none.h5", "labels"),
            h5py.ExternalLink("/etc/passwd", "labels"),
            h5py.SoftLink("/group/labels"),
            h5py.SoftLink("/nowhere"),
        ],
    )
    def test_links_are_refused_and_never_followed(self, tmp_path, link):
        with h5py.File(tmp_path / "b.h5", "w") as file:
            file["labels"] = np.arange(3)
        (tmp_path / "set").mkdir()
        (tmp_path / "b.h5").rename(tmp_path / "set" / "b.h5")
        with h5py.File(tmp_path / "set" / "a.h5", "w") as file:
            file["images"] = np.zeros((3, 2, 2), "uint8")
            file["group/labels"] = np.arange(3)
            file["labels"] = link
        with pytest.raises(SchemaError, match=r"a\.h5: 'labels' is a link, .*: copy them here, or .*--schema"):
            index(tmp_path / "set", format="hdf5", match="a.h5")
        _, found = adopt(tmp_path / "set", "hdf5", match="a.h5", schema=Schema.of({"image": "uint8[2,2]"}))
        assert len(found) == 3

    def test_what_is_left_out_is_named(self, tmp_path, caplog):
        with h5py.File(tmp_path / "a.h5", "w") as file:
            file["x"], file["y"] = np.zeros((3, 2), "float32"), np.arange(3)
            file["mean"], file["version"], file["meta/more"] = np.zeros(2), 7, np.zeros(3)
            file["empty"], file["kind"] = h5py.Empty("f"), np.dtype("f4")
        manifest, _ = adopt(tmp_path, "hdf5")
        assert manifest.schema.types() == {"image": "float32[2]", "label": "int64"}
        no_rows = "it is not a dataset of rows"
        left_out = {
            "mean": "it has 2 rows, not 3",
            "version": no_rows,
            "meta": no_rows,
            "empty": no_rows,
            "kind": no_rows,
        }
        assert sorted(caplog.messages) == sorted(
            f"{tmp_path / 'a.h5'}: {name!r} is left out: {why}" for name, why in left_out.items()
        )

    def test_an_external_or_virtual_dataset_is_refused(self, tmp_path):
        layout = h5py.VirtualLayout((3,), "i8")
        layout[:] = h5py.VirtualSource("b.h5", "labels", (3,))
        for make in (
            lambda file: file.create_virtual_dataset("label", layout),
            lambda file: file.create_dataset("label", (3,), "i8", external=[("/etc/passwd", 0, 24)]),
        ):
            with h5py.File(tmp_path / "a.h5", "w") as file:
                file["image"] = np.zeros((3, 2), "uint8")
                make(file)
            with pytest.raises(CorruptRecordError, match="'label' is not a dataset whose data are in this file"):
                index(tmp_path, format="hdf5", workers=1)
