"""TensorFlow's strategies over a packed data set: two workers, and two replicas in one process."""

from __future__ import annotations

import json
from typing import Any

import pytest

from dlio.dataset.manifest import Manifest
from tests.loaders.ranks import free_ports, photos_of, run_job

ALL = list(range(41))


def workers(count: int) -> list[dict[str, str]]:
    """Returns TF_CONFIG for each worker of a job on one node."""
    cluster = {"worker": [f"127.0.0.1:{port}" for port in free_ports(count)]}
    tasks = [{"type": "worker", "index": index} for index in range(count)]
    return [{"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})} for task in tasks]


@pytest.fixture(scope="module")
def two_workers(packed: Manifest, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """What each of two workers reports."""
    return run_job("multi_worker_job", packed.root, tmp_path_factory.mktemp("workers"), workers(2))


@pytest.fixture(scope="module")
def two_replicas(packed: Manifest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What a process with two replicas reports."""
    return run_job("mirrored_job", packed.root, tmp_path_factory.mktemp("mirrored"), [{}])[0]


@pytest.mark.parametrize("case", ["by function", "by data set"])
def test_workers_see_every_photo_once(two_workers: list[Any], case: str) -> None:
    seen = [[photo for batch in worker[case] for photo in batch] for worker in two_workers]
    assert sorted(seen[0] + seen[1]) == ALL
    assert len({len(worker[case]) for worker in two_workers}) == 1, "workers took different steps"


def test_workers_fit_the_same_model(two_workers: list[Any]) -> None:
    fitted = [worker["fit"] for worker in two_workers]
    assert fitted[0] == fitted[1] and len(fitted[0]["losses"]) == 2


@pytest.mark.parametrize("case", ["by function", "by data set"])
def test_replicas_of_a_process_see_every_photo_once(two_replicas: Any, case: str) -> None:
    assert photos_of([two_replicas[case]]) == ALL
    assert len(two_replicas[case]) % 2 == 0 and max(map(len, two_replicas[case])) == 3


def test_replicas_of_a_process_fit_a_model(two_replicas: Any) -> None:
    assert len(two_replicas["fit"]["losses"]) == 2
