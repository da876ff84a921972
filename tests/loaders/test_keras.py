"""Keras 3 over a packed data set: a PyDataset on the backends torch and tensorflow."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from PIL import Image

from dlio.dataset.manifest import Manifest
from dlio.dataset.schema import IMAGE_CLASSIFICATION, Sample
from dlio.errors import UsageError
from dlio.images import Resize
from dlio.loaders.keras import BackupAndResume, PackedPyDataset
from tests.helpers.images import encoded
from tests.loaders.packing import pack_samples
from tests.loaders.photos import dlio_threads, numbers
from tests.loaders.ranks import run_job

ALL = list(range(41))
STEPS = 11
CASES = ["alone", "threads"]


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Iterator[None]:
    """TensorFlow keeps its own threads, so only those of dlio are looked for."""
    yield
    assert not dlio_threads()


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


def test_initial_epoch_is_the_epoch_of_the_data(fitted: Any) -> None:
    last = {name: photos for name, photos in fitted["alone"]["seen"].items() if name.startswith("2.")}
    late = {name: photos for name, photos in fitted["late"].items() if name.startswith("2.")}
    assert late == last and not any(name.startswith("1.") for name in fitted["late"])


def test_epochs_of_fewer_steps_go_on_through_the_data(fitted: Any) -> None:
    seen, whole = fitted["stepped"], fitted["alone"]["seen"]
    found = [seen[f"{epoch}.{step}"] for epoch in range(3) for step in range(4)]
    assert found == [whole[f"{number // STEPS}.{number % STEPS}"] for number in range(12)]


def test_steps_of_fit_are_an_error_and_validation_repeats_its_epoch(fitted: Any) -> None:
    assert "fit(steps_per_epoch=4), but an epoch of this data set has 11 batches: give" in fitted["problem"]
    assert fitted["validated"] == 0


def trained(run: Any, first: int) -> list[list[int]]:
    """Returns the photos of the batches that a run was trained on, which began with the epoch `first`."""
    names = [name for name in run["trained"] if name[0].isdigit()]
    assert names[0] == f"{first}.0"
    return [run["seen"][name] for name in names]


def test_a_run_that_is_stopped_in_mid_epoch_goes_on_with_the_next_batch(fitted: Any) -> None:
    whole, found = fitted["whole"], fitted["stopped"]
    seen, steps = whole["runs"][0]["seen"], [f"{epoch}.{step}" for epoch in range(3) for step in range(STEPS)]
    expected = [seen[step] for step in steps]
    runs = found["runs"]
    assert [trained(run, epoch) for run, epoch in zip(runs, (0, 0, 1), strict=True)] == [
        expected[:6], expected[4:15], expected[15:],
    ]  # fmt: skip
    assert [run["trained"].count("validated") for run in runs] == [0, 1, 2], "each epoch is validated once"
    assert not any("not validated" in run["trained"] for run in runs)
    assert found["weights"] == pytest.approx(whole["weights"], rel=1e-5)
    assert found["left"] == ["3-0.weights.h5", "resume.json"] == whole["left"]


def test_a_state_may_be_loaded_by_hand_and_later_epochs_are_whole(fitted: Any) -> None:
    seen = fitted["whole"]["runs"][0]["seen"]
    expected = [seen[f"{epoch}.{step}"] for epoch in range(2) for step in range(STEPS)]
    assert trained(fitted["by hand"], 0) == expected[4:]


def test_a_run_that_is_saved_by_epochs_begins_its_epoch_again(fitted: Any) -> None:
    seen, found = fitted["whole"]["runs"][0]["seen"], fitted["by epoch"]
    expected = [seen[f"1.{step}"] for step in range(STEPS)]
    assert trained(found["runs"][1], 1)[:STEPS] == expected and trained(found["runs"][0], 0)[STEPS:] == expected[:2]
    assert found["weights"] == pytest.approx(fitted["whole"]["weights"], rel=1e-5)


def test_epochs_of_fewer_steps_go_on_where_they_were_stopped(fitted: Any) -> None:
    seen, runs = fitted["alone"]["seen"], fitted["in steps"]["runs"]
    expected = [seen[f"{number // STEPS}.{number % STEPS}"] for number in range(12)]
    assert [trained(run, epoch) for run, epoch in zip(runs, (0, 1, 1), strict=True)] == [
        expected[:6], expected[4:7], expected[7:],
    ]  # fmt: skip
    assert runs[2]["trained"] == ["1.0", "validated", "2.0", "2.1", "2.2", "2.3", "validated"]


def test_a_data_set_of_one_batch_keeps_its_first_epoch_though_keras_builds_the_model_with_it(fitted: Any) -> None:
    assert fitted["small"] == ["0.0", "1.0"]


def test_without_a_transform_images_are_bytes(fitted: Any) -> None:
    assert fitted["encoded"] == ["bytes"] * 4


def test_threads_change_no_batch(fitted: Any) -> None:
    alone, threads = (fitted[case]["seen"] for case in CASES)
    assert all(alone[name] == threads[name] for name in alone)
    assert all(len(fitted[case]["losses"]) == 3 for case in CASES)


def test_upright_turns_images(tmp_path: Path) -> None:
    exif = Image.Exif()
    exif[0x0112] = 3
    picture = Image.new("RGB", (8, 8), "black")
    picture.paste("white", (0, 0, 8, 4))
    fields = {"image": encoded(picture, "JPEG", exif=exif), "label": 0}
    manifest = pack_samples(tmp_path, IMAGE_CLASSIFICATION, [Sample("a", fields)], num_shards=1)
    for upright in (False, True):
        images, _ = PackedPyDataset(manifest, 1, transform=Resize(8), upright=upright, workers=0)[0]
        assert (images[0, 0].max() < 128) == upright


def test_batches_are_equal_in_any_order(packed: Manifest) -> None:
    batches = PackedPyDataset(packed, 4, transform=Resize(16), shuffle=True, workers=2)
    in_turn = [numbers([batches[index]]) for index in range(STEPS)]
    mixed = [7, 3, 4, 5, 0, 10, 1, 2, 9, 8, 6, 6]
    assert [numbers([batches[index]]) for index in mixed] == [in_turn[index] for index in mixed]
    assert numbers([pickle.loads(pickle.dumps(batches))[3]]) == in_turn[3]
    with pytest.raises(IndexError, match="step 11 of 11"):
        batches[STEPS]
    batches.close()


def test_threads_work_ahead_only_in_turn(packed: Manifest) -> None:
    batches = PackedPyDataset(packed, 4, transform=Resize(16), workers=2)
    assert batches[5] and not dlio_threads()
    assert batches[6] and dlio_threads().count("dlio-loader") == 2
    batches.on_epoch_end()
    assert not dlio_threads() and batches.epoch == 0, "two batches are not an epoch"
    assert batches[0] and dlio_threads()
    del batches
    assert not dlio_threads()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of TensorFlow with numpy
def test_a_step_that_is_saved_again_keeps_its_backup_until_the_new_one_is_whole(
    packed: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a run ended in the second save: a stop right after a save by `save_freq` saves the same step again."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    data = PackedPyDataset(packed, 4, transform=Resize(8))
    resume = BackupAndResume(data, tmp_path)
    resume.set_model(model)
    resume.on_epoch_end(0)
    before = model.get_weights()

    def cut_off(path: Path, **_: Any) -> None:
        Path(path).write_bytes(b"half")
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(model, "save_weights", cut_off)
        resume.on_epoch_end(0)
    model.set_weights([each + 1 for each in before])
    resume.on_train_begin()
    assert all(map(np.array_equal, model.get_weights(), before))
    resume.on_epoch_end(0)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0-0.weights.h5", "resume.json"]
    (tmp_path / "0-0.weights.h5").write_bytes(b"half")
    with pytest.raises(UsageError, match=r"0-0\.weights\.h5 cannot be read: .*; remove .* to start again"):
        resume.on_train_begin()
    data.close()
