"""Keras 3 over a packed data set: a PyDataset on the backends torch and tensorflow."""

from __future__ import annotations

from typing import Any

import pytest

from dlio.dataset.manifest import Manifest
from tests.loaders.ranks import run_job

ALL = list(range(41))
STEPS = 11
CASES = ["alone", "threads"]


@pytest.fixture(scope="module", params=["torch", "tensorflow"])
def fitted(packed: Manifest, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Any:
    """What a model on each backend in turn was fitted with."""
    folder = tmp_path_factory.mktemp(f"keras-{request.param}")
    return run_job("keras_job", packed.root, folder, [{"KERAS_BACKEND": request.param}])[0]


@pytest.mark.parametrize("case", CASES)
def test_every_photo_is_seen_once_in_every_epoch(fitted: Any, case: str) -> None:
    seen = fitted[case]["seen"]
    epochs = [[seen[f"{epoch}.{step}"] for step in range(STEPS)] for epoch in range(3)]
    for epoch in epochs:
        assert sorted(photo for batch in epoch for photo in batch) == ALL
    assert epochs[0] != epochs[1] != epochs[2]


def test_without_a_transform_images_are_bytes(fitted: Any) -> None:
    assert fitted["encoded"] == ["bytes"] * 4


def test_threads_change_no_batch(fitted: Any) -> None:
    alone, threads = (fitted[case]["seen"] for case in CASES)
    assert all(alone[name] == threads[name] for name in alone)
    assert all(len(fitted[case]["losses"]) == 3 for case in CASES)
