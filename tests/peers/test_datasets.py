"""The builders of Hugging Face's `datasets` read what dlio writes, and dlio what they write."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

import dlio
from dlio.io.files import digest_bytes
from dlio.loaders.dataset import PackedSamples
from tests.helpers.images import make_image_folder
from tests.peers import installed

pytestmark = pytest.mark.jobs

JOB = Path(__file__).with_name("datasets_job.py")


def test_builders_and_dlio_read_one_anothers_files(tmp_path: Path) -> None:
    installed.require("datasets", "dill", "multiprocess", "pandas")
    make_image_folder(tmp_path / "photos", {"cat": 7, "dog": 5})
    photos = sorted((tmp_path / "photos").rglob("*.png"))
    dlio.pack(tmp_path / "photos", tmp_path / "packed", format="webdataset", num_shards=2)
    environment = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1"}
    told = json.loads(installed.run([sys.executable, "-W", "ignore", JOB, tmp_path], environment).splitlines()[-1])
    keys = [str(path.relative_to(tmp_path / "photos").with_suffix("")) for path in photos]
    expected = [
        [key, int(key.startswith("dog")), digest_bytes(path.read_bytes())]
        for key, path in zip(keys, photos, strict=True)
    ]
    assert told["loaded"] == told["streamed"] == expected
    assert told["parquet"] == [[digest, label] for _, label, digest in expected]

    dlio.index(tmp_path / "parquet", format="parquet")
    dlio.pack(tmp_path / "saved", tmp_path / "from-saved")
    for written in ("parquet", "from-saved"):
        found = PackedSamples(tmp_path / written).read_columns(range(len(photos)))
        assert [digest_bytes(image) for image in found["image"]] == [digest for _, _, digest in expected]
        assert found["label"].tolist() == [label for _, label, _ in expected]
