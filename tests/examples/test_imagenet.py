"""ResNet-50 by torchrun: stopped in the middle of an epoch on two ranks, then continued on one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from dlio.images import Resize
from tests.examples import shell
from tests.examples.observe import NUM_TEST, NUM_TRAIN
from tests.helpers.lazy import Lazy

torch = Lazy("torch")
DataLoader = Lazy("dlio.loaders.torch", "DataLoader")
PackedDataset = Lazy("dlio.loaders.torch", "PackedDataset")
script = Lazy("tools.examples.imagenet_resnet50_ddp")
SCRIPT = "imagenet_resnet50_ddp.py"
BATCH_SIZE = 4
STOP = 8  # steps on two ranks: an epoch of 6, and two more
SMALL = f"--size 32 --width 4 --batch-size {BATCH_SIZE} --epochs 2 --warmup-epochs 1 --workers 1"


@dataclass(frozen=True)
class Run:
    """What a run has printed, and the global batches that its ranks were given."""

    output: str
    train: list[list[int]]
    test: list[list[int]]


def start(folder: Path, training: str, num_ranks: int, options: str) -> Run:
    """Trains on `num_ranks` ranks."""
    notes = folder / f"on {num_ranks}"
    notes.mkdir()
    command = training.replace("--nproc-per-node 4", f"--nproc-per-node {num_ranks}")
    (output,) = shell.run([f"{command} {SMALL} {options}"], folder, [{"OBSERVED": str(notes)}])
    ranks = shell.observed(notes)
    assert len(ranks) == num_ranks
    return Run(output, shell.steps(ranks, "train"), shell.steps(ranks, "test"))


def trains_on_every_image_once_in_each_epoch(runs: tuple[Run, Run]) -> None:
    steps = runs[0].train + runs[1].train
    assert [len(step) for step in runs[0].train] == [2 * BATCH_SIZE] * STOP
    images = shell.images(steps)
    assert sorted(images[:NUM_TRAIN]) == sorted(images[NUM_TRAIN:]) == list(range(NUM_TRAIN))
    assert images[:NUM_TRAIN] != images[NUM_TRAIN:]


def goes_on_at_the_very_sample(runs: tuple[Run, Run], folder: Path) -> None:
    dataset = PackedDataset(folder / "imagenet" / "train", Resize(8))
    loader = DataLoader(dataset, BATCH_SIZE, shuffle=True, drop_last=True, rank=0, world_size=1)
    loader.set_epoch(1)
    order = list(loader.sampler)
    loader.close()
    reached = STOP * 2 * BATCH_SIZE - NUM_TRAIN
    assert shell.images(runs[0].train[NUM_TRAIN // (2 * BATCH_SIZE) :]) == order[:reached]
    assert shell.images(runs[1].train) == order[reached:]


def counts_every_validation_image_once(runs: tuple[Run, Run]) -> None:
    for run in runs:
        assert sorted(shell.images(run.test)) == list(range(NUM_TEST))
        assert f"validation: {NUM_TEST} images, top-1 " in run.output
        assert "top-5 100.00%" in run.output, "there are three classes"


def learns_and_says_where_the_time_went(runs: tuple[Run, Run]) -> None:
    output = runs[0].output + runs[1].output
    shell.losses(output)
    counted = re.findall(r"epoch (\d): (\d+) images.*the trainer waited", output)
    assert counted == [("0", "48"), ("1", "16"), ("1", "32")]


def checkpoint_holds_the_end(folder: Path) -> None:
    state = torch.load(folder / "resnet50.pt", weights_only=True)
    assert (state["loader"]["epoch"], state["loader"]["samples"]) == (2, 0)
    assert not list(folder.glob("*.partial"))


def test_the_network_is_resnet50() -> None:
    """It has as many parameters as torchvision's."""
    network = script.resnet50(1000)
    assert sum(parameter.numel() for parameter in network.parameters()) == 25_557_032


@pytest.mark.jobs
@pytest.mark.timeout(600)
def test_a_stopped_run_goes_on_with_another_number_of_ranks(imagenet: Path) -> None:
    training = shell.prepare(SCRIPT, imagenet)
    runs = start(imagenet, training, 2, f"--steps {STOP}"), start(imagenet, training, 1, "")
    trains_on_every_image_once_in_each_epoch(runs)
    goes_on_at_the_very_sample(runs, imagenet)
    counts_every_validation_image_once(runs)
    learns_and_says_where_the_time_went(runs)
    checkpoint_holds_the_end(imagenet)
