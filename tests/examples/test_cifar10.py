"""A Keras model on CIFAR-10 under MultiWorkerMirroredStrategy, as two processes."""

from __future__ import annotations

import json
import re
import socket
from pathlib import Path

import pytest

from tests.examples import shell
from tests.examples.observe import NUM_TEST, NUM_TRAIN

SCRIPT = "cifar10_128_keras.py"
BATCH_SIZE, EPOCHS = 4, 3
SMALL = f"--model Small --size 32 --batch-size {BATCH_SIZE} --epochs {EPOCHS} --learning-rate 0.3"


def clusters(num_workers: int) -> list[str]:
    """Returns TF_CONFIG for each worker of a cluster on this machine."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(num_workers)]
    workers = ["{}:{}".format(*opened.getsockname()) for opened in sockets]
    for opened in sockets:
        opened.close()
    tasks = ({"type": "worker", "index": index} for index in range(num_workers))
    return [json.dumps({"cluster": {"worker": workers}, "task": task}) for task in tasks]


@pytest.mark.jobs
@pytest.mark.timeout(600)
def test_two_workers_share_every_epoch(cifar10: Path) -> None:
    training = shell.prepare(SCRIPT, cifar10)
    notes = cifar10 / "notes"
    notes.mkdir()
    environments = [{"TF_CONFIG": config, "OBSERVED": str(notes)} for config in clusters(2)]
    output, other = shell.run([f"{training} {SMALL}"] * 2, cifar10, environments)
    ranks = shell.observed(notes)
    assert len(ranks) == 2
    train, test = shell.steps(ranks, "train"), shell.steps(ranks, "test")
    assert [len(step) for step in train] == [2 * BATCH_SIZE] * (NUM_TRAIN // (2 * BATCH_SIZE)) * EPOCHS
    assert sorted(shell.images(train)) == sorted(list(range(NUM_TRAIN)) * EPOCHS)
    assert sorted(shell.images(test)) == sorted(list(range(NUM_TEST)) * EPOCHS)
    done = [("trained", str(NUM_TRAIN)), ("tested", str(NUM_TEST))]
    expected = [(str(epoch), *counted) for epoch in range(EPOCHS) for counted in done]
    assert re.findall(r"epoch (\d): (\w+) on (\d+) images", output) == expected
    shell.losses(output)
    assert "epoch" not in other, "only the first worker prints"
    assert (cifar10 / "cifar10.keras").exists()
