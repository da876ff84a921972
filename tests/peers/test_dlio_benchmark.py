"""The DLIO benchmark, from its wheel, loads by dlio: each sample once an epoch, as its configuration says."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

import dlio
from benchmarks.mlperf_storage.workloads import WORKLOADS
from dlio.io.files import digest_bytes
from dlio.stage.copies import locations
from tests.helpers.images import image
from tests.helpers.mpi import MPIEXEC
from tests.peers import installed

pytestmark = pytest.mark.jobs

JOB = Path(__file__).with_name("dlio_benchmark_job.py")
NUM_FILES, BATCH = 26, 4
WORKLOAD = replace(
    WORKLOADS["retinanet"],
    format="png",
    reader={"batch_size": BATCH, "read_threads": 2, "sample_shuffle": "seed"},
    seconds=0,
)
PLACES = {"data/train": NUM_FILES, "few/train": 5, "inside/train": NUM_FILES, "inside/valid": 4}
#: The changes of each case, after the arguments of the workload, and the environment; FOLDER stands for the test's own.
CASES: dict[str, tuple[list[str], dict[str, str]]] = {
    "shuffled": ([], {"DLIO_DATASET": "FOLDER/packed"}),
    "in order": (["reader.sample_shuffle=off"], {"DLIO_DATASET": "FOLDER/packed"}),
    "by file": (["reader.sample_shuffle=off", "reader.file_shuffle=seed"], {"DLIO_DATASET": "FOLDER/packed"}),
    "one seed": (["train.seed_change_epoch=False"], {"DLIO_DATASET": "FOLDER/packed"}),
    "no thread": (["reader.read_threads=0", "reader.prefetch_size=0"], {"DLIO_DATASET": "FOLDER/packed"}),
    "decoded": ([], {"DLIO_DATASET": "FOLDER/packed", "DLIO_DECODE": "32"}),
    "fewer files": (["dataset.num_files_train=8"], {"DLIO_DATASET": "FOLDER/packed"}),
    "in place": (["dataset.data_folder=FOLDER/inside"], {}),
    "evaluated": (
        [
            "dataset.data_folder=FOLDER/inside",
            "workflow.evaluation=True",
            "dataset.num_files_eval=4",
            "reader.batch_size_eval=2",
        ],
        {},
    ),
    "no data set": ([], {}),
    "no such data set": ([], {"DLIO_DATASET": "FOLDER/absent"}),
    "no evaluation": (["workflow.evaluation=True"], {"DLIO_DATASET": "FOLDER/packed"}),
    "another sampler": (["reader.data_loader_sampler=index"], {"DLIO_DATASET": "FOLDER/packed"}),
    "too few": ([], {"DLIO_DATASET": "FOLDER/short"}),
    "preprocessing": (["reader.preprocess_time=0.1"], {"DLIO_DATASET": "FOLDER/packed"}),
    "a distribution": (["reader.preprocess_time={mean: 0, stdev: 0.1}"], {"DLIO_DATASET": "FOLDER/packed"}),
    "zeros": (["reader.preprocess_time={type: normal, mean: 0}"], {"DLIO_DATASET": "FOLDER/packed"}),
    "no size": ([], {"DLIO_DATASET": "FOLDER/packed", "DLIO_DECODE": "large"}),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The benchmark's files, data sets of dlio, and a data folder whose parts are data sets."""
    installed.require("dlio_benchmark", "hydra")
    folder = tmp_path_factory.mktemp("benchmark")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(locations, "LISTED_AT", folder)
        for place, number in PLACES.items():
            (folder / place).mkdir(parents=True)
            for each in range(number):
                (folder / place / f"img_{each:02}.png").write_bytes(image(each))
        (folder / "data/valid").mkdir()  # the benchmark lists it in any case
        dlio.pack(folder / "data/train", folder / "packed", format="recordio", num_shards=2)
        dlio.pack(folder / "few/train", folder / "short", format="recordio")
        for part in ("train", "valid"):
            made = folder / f"made-{part}"
            dlio.pack(folder / "inside" / part, made, format="recordio")
            for path in made.iterdir():
                path.rename(folder / "inside" / part / path.name)
        yield folder


def run(folder: Path, names: list[str], ranks: int = 1) -> dict[str, list[Any]]:
    """Returns the answers of the ranks in each case."""
    cases = []
    for name in names:
        changes, environment = CASES[name]
        words = WORKLOAD.overrides(folder / "data", folder / "out", NUM_FILES, epochs=2)[1:]
        words += ["++workload.reader.data_loader_sampler=iterative", "++workload.workflow.train=True"]
        words += [f"++workload.{change}" for change in changes]
        cases.append({"words": words, "environment": environment})
    given = json.dumps(cases).replace("FOLDER", str(folder))
    launcher = [MPIEXEC, "-n", ranks] if ranks > 1 else []
    told = installed.run([*launcher, sys.executable, "-W", "ignore", JOB, given], cwd=folder)
    answers = [json.loads(line) for line in told.splitlines() if line.startswith("[{")]
    return dict(zip(names, answers, strict=True))


@pytest.fixture(scope="module")
def one(folder: Path) -> dict[str, Any]:
    """The answers of one rank."""
    return {name: ranks[0] for name, ranks in run(folder, list(CASES)).items()}


def epochs(answer: dict[str, Any]) -> list[list[str]]:
    """Returns the samples of each epoch, in order."""
    assert "error" not in answer, answer["error"]
    return [list(chain.from_iterable(batches)) for batches in answer["batches"]]


def digests(number: int) -> list[str]:
    return [digest_bytes(image(each)) for each in range(number)]


@pytest.mark.parametrize("case", ["shuffled", "by file", "no thread", "zeros"])
def test_an_epoch_has_each_sample_once_in_an_order_of_its_own(one, case):
    first, second = epochs(one[case])
    assert len(first) == len(second) == NUM_FILES // BATCH * BATCH
    assert set(first) | set(second) <= set(digests(NUM_FILES))
    assert len(set(first)) == len(first) and len(set(second)) == len(second)
    assert first != second and first != digests(NUM_FILES)[: len(first)]


def test_the_benchmarks_steps_are_batches_of_its_size(one):
    assert [[len(batch) for batch in epoch] for epoch in one["shuffled"]["batches"]] == [
        [BATCH] * (NUM_FILES // BATCH)
    ] * 2


def test_without_shuffle_samples_come_in_order(one):
    assert epochs(one["in order"]) == [digests(NUM_FILES)[: NUM_FILES // BATCH * BATCH]] * 2


def test_one_seed_for_all_epochs_gives_one_order(one):
    first, second = epochs(one["one seed"])
    assert first == second != digests(NUM_FILES)[: len(first)]


def test_images_are_decoded_if_the_environment_asks(one):
    assert epochs(one["decoded"]) == [[[3, 32, 32, "uint8"]] * (NUM_FILES // BATCH * BATCH)] * 2


def test_fewer_files_than_samples_are_the_first_ones(one):
    for epoch in epochs(one["fewer files"]):
        assert sorted(epoch) == sorted(digests(8))


def test_a_data_set_in_the_data_folder_needs_no_variable(one):
    assert set(chain.from_iterable(epochs(one["in place"]))) <= set(digests(NUM_FILES))


def test_evaluation_reads_its_own_data_set(one):
    training, evaluation = epochs(one["evaluated"])[:2]
    assert len(training) == NUM_FILES // BATCH * BATCH and sorted(evaluation) == sorted(digests(4))


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("no data set", ["data/train", "workload.dataset.data_folder", "DLIO_DATASET"]),
        ("no such data set", ["absent", "DLIO_DATASET"]),
        ("no evaluation", ["data/valid", "workload.workflow.evaluation=False"]),
        ("another sampler", ["workload.reader.data_loader_sampler=index", "iterative"]),
        ("too few", ["short has 5 samples", "workload.dataset.num_files_train", "26"]),
        ("preprocessing", ["workload.reader.preprocess_time=0.1", "DLIO_DECODE"]),
        ("a distribution", ["workload.reader.preprocess_time={'mean': 0, 'stdev': 0.1}", "DLIO_DECODE"]),
        ("no size", ["DLIO_DECODE=large"]),
    ],
)
def test_an_error_names_the_key_to_change(one, case, words):
    assert one[case]["error"].startswith("UsageError: ")
    assert [word for word in words if word not in one[case]["error"]] == []


def test_ranks_share_an_epoch(folder):
    answers = run(folder, ["shuffled"], ranks=2)["shuffled"]
    for ranks in zip(*map(epochs, answers), strict=True):
        together = list(chain.from_iterable(ranks))
        assert len(ranks[0]) == len(ranks[1]) == NUM_FILES // (2 * BATCH) * BATCH
        assert len(set(together)) == len(together) and set(together) <= set(digests(NUM_FILES))
