"""`order` names the samples that the loaders really deliver, in any step of any run."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dlio
from dlio import cli
from dlio.dataset.manifest import Manifest
from dlio.dataset.schema import Sample, Schema
from dlio.errors import CorruptRecordError, StorageError, UsageError
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.loader import ArrayBatches, Loader
from dlio.loaders.mixture import Mixture
from dlio.loaders.sampling.order import Shuffle, Window
from tests.helpers.lazy import Lazy
from tests.loaders.packing import pack_samples

torch = Lazy("torch")
JaxLoader = Lazy("dlio.loaders.jax", "DataLoader")
PackedPyDataset = Lazy("dlio.loaders.keras", "PackedPyDataset")
DataLoader = Lazy("dlio.loaders.torch", "DataLoader")
PackedDataset = Lazy("dlio.loaders.torch", "PackedDataset")


SHUFFLES: list[Shuffle] = [False, True, Window(2)]


def pack(folder: Path, first: int, count: int, num_shards: int) -> Manifest:
    """Packs samples whose key is their label."""
    rows = [Sample(str(number), {"label": number}) for number in range(first, first + count)]
    return pack_samples(folder, Schema.of({"label": "int64"}), rows, num_shards=num_shards)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Manifest:
    return pack(tmp_path_factory.mktemp("order") / "packed", 1000, 61, 6)


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory, packed: Manifest) -> Mixture:
    other = pack(tmp_path_factory.mktemp("order") / "other", 5000, 23, 4)
    return Mixture([(packed, 3), (other, 1)])


def delivered(batches: Any) -> list[list[str]]:
    return [[str(int(label)) for label in batch["label"]] for batch in batches]


@settings(max_examples=60, deadline=None)
@given(
    shuffle=st.sampled_from(SHUFFLES),
    end=st.sampled_from(["drop", "pad", "mask"]),
    ranks=st.sampled_from([1, 2, 4]),
    lanes=st.sampled_from([1, 2]),
    half=st.integers(1, 4),
    seed=st.integers(0, 2**40),
    epoch=st.integers(0, 3),
    mixed=st.booleans(),
)
def test_it_is_what_the_loader_of_torch_delivers(packed, mixture, shuffle, end, ranks, lanes, half, seed, epoch, mixed):
    data, batch_size = mixture if mixed else packed, 2 * half
    options: dict[str, Any] = {"shuffle": shuffle, "seed": seed, "lanes": lanes, "end": end}
    found = dlio.order(data, batch_size=batch_size, epoch=epoch, ranks=ranks, **options)
    for rank in range(ranks):
        loader = DataLoader(PackedDataset(data), batch_size, rank=rank, world_size=ranks, **options)
        loader.set_epoch(epoch)
        own = [batch for batch in found if batch.rank == rank]
        got = list(loader)
        loader.close()
        if end == "mask":
            assert [list(batch.valid) for batch in own] == [batch["valid"].tolist() for batch in got]
        assert [list(batch.keys) for batch in own] == delivered(got)
        assert [batch.step for batch in own] == list(range(len(got)))
    assert [(batch.step, batch.rank) for batch in found] == sorted((batch.step, batch.rank) for batch in found)
    last = dlio.order(data, batch_size=batch_size, epoch=epoch, ranks=ranks, rank=0, step=found[-1].step, **options)
    assert last == [found[-ranks]]


def by_loader(packed: Manifest) -> list[list[str]]:
    loader = Loader(ArrayBatches(PackedSamples(packed)), 4, shuffle=True, seed=9, rank_and_size=lambda: (1, 3))
    return delivered(loader)


def by_keras(packed: Manifest) -> list[list[str]]:
    batches = PackedPyDataset(packed, 4, shuffle=True, seed=9, rank_and_size=lambda: (1, 3))
    return delivered([batches[number] for number in range(len(batches))])


@pytest.mark.parametrize("by", [by_loader, by_keras])
def test_it_is_what_other_loaders_deliver(packed, by):
    found = by(packed)
    expected = dlio.order(packed, batch_size=4, seed=9, ranks=3, rank=1)
    assert found == [list(batch.keys) for batch in expected[: len(found)]] and len(found) >= 5


def test_a_batch_of_jax_is_that_of_all_ranks(packed):
    found = delivered(JaxLoader(packed, 12, shuffle=True, seed=9, end="drop"))
    expected = dlio.order(packed, batch_size=4, seed=9, ranks=3, end="drop")
    assert found == [[key for rank in range(3) for key in expected[3 * step + rank].keys] for step in range(5)]


def run_some(packed: Manifest, steps: int) -> tuple[list[list[str]], dict[str, int | str]]:
    loader = DataLoader(PackedDataset(packed), 5, shuffle=True, seed=4, rank=0, world_size=2)
    loader.set_epoch(2)
    batches = iter(loader)
    seen = delivered([next(batches) for _ in range(steps)])
    state = loader.state_dict()
    loader.close()
    return seen, state


def test_a_checkpoint_says_what_the_run_has_seen(packed, tmp_path):
    seen, state = run_some(packed, 3)
    torch.save({"model": {"weight": torch.zeros(3)}, "loop": [1, {"loader": state}]}, tmp_path / "run.pt")
    (tmp_path / "run.json").write_text(json.dumps(state))
    torch.save(state, tmp_path / "old.pt", _use_new_zipfile_serialization=False)
    for saved in (state, tmp_path / "run.pt", str(tmp_path / "run.json"), tmp_path / "old.pt"):
        found = dlio.order(packed, batch_size=5, ranks=2, rank=0, state=saved)
        assert [list(batch.keys) for batch in found] == seen
        assert {batch.epoch for batch in found} == {2}
    before = dlio.order(packed, batch_size=5, ranks=2, epoch=1, state=state)
    assert before == dlio.order(packed, batch_size=5, ranks=2, epoch=1, seed=4) and len(before) == 14
    assert dlio.order(packed, batch_size=5, state=run_some(packed, 0)[1]) == []


class Unknown:
    """What else a checkpoint may hold."""


def test_what_cannot_be_said_is_refused(packed, tmp_path):
    _, state = run_some(packed, 3)
    for name, content in {
        "none.pt": {"epoch": 3},
        "two.pt": [state, state | {"seed": 7}],
        "unsafe.pt": Unknown(),
    }.items():
        torch.save(content, tmp_path / name)
    (tmp_path / "noise").write_bytes(b"\x80noise")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"step": 7}, "step 7: the epoch has 7 steps"),
        ({"step": -1}, "counted from 0"),
        ({"epoch": -1}, "epochs are counted from 0"),
        ({"ranks": 0}, "expected at least 1"),
        ({"rank": 2}, "rank 2 of 2"),
        ({"shuffle": "no"}, "shuffle"),
        ({"end": "stop"}, "expected drop"),
        ({"state": state, "epoch": 3}, "has not begun"),
        ({"state": state, "seed": 5}, "saved with seed=4"),
        ({"state": state, "shuffle": False}, "another data set, shuffle"),
        ({"state": state, "batch_size": 4}, "30 samples into its epoch"),
        ({"state": state | {"seed": "x"}}, "expected a whole number"),
        ({"state": tmp_path / "none.pt"}, "no state"),
        ({"state": tmp_path / "two.pt"}, "2 different states"),
        (
            {"state": tmp_path / "unsafe.pt"},
            r"without running code in it \(Unsupported global: GLOBAL \S+ was not an allowed global by default\): save",
        ),
        ({"state": tmp_path / "noise"}, "save the loader's state alone"),
    ]
    for options, message in wrong:
        with pytest.raises(UsageError, match=message):
            dlio.order(packed, **{"batch_size": 5, "ranks": 2} | options)
    with pytest.raises(StorageError, match=r"missing\.pt"):
        dlio.order(packed, batch_size=5, state=tmp_path / "missing.pt")


def test_no_sample_is_read_and_parts_of_shards_have_their_keys(packed, tmp_path):
    part = dlio.select(packed, tmp_path / "part", where=["label>=1030", "label!=1044"])
    expected = [list(batch.keys) for batch in dlio.order(part, batch_size=6, seed=3)]
    loader = DataLoader(PackedDataset(part), 6, shuffle=True, seed=3)
    assert delivered(loader) == expected and len(expected) == 5
    loader.close()
    for path in packed.root.glob("*.tfrecord"):
        path.rename(path.with_suffix(".gone"))
    try:
        assert [list(batch.keys) for batch in dlio.order(part, batch_size=6, seed=3)] == expected
    finally:
        for path in packed.root.glob("*.gone"):
            path.rename(path.with_suffix(".tfrecord"))
    bare = Manifest(
        packed.format, packed.schema, tuple(s.replace(files=s.files[:1]) for s in packed.shards), {}, packed.root
    )
    with pytest.raises(CorruptRecordError, match="has no table of its samples"):
        dlio.order(bare, batch_size=6)


def lines(capsys: pytest.CaptureFixture[str], *words: object) -> Sequence[str]:
    assert cli.main(["order", *map(str, words)]) == 0
    return capsys.readouterr().out.splitlines()


def test_the_command_line(packed, tmp_path, capsys):
    words = (packed.root, "--batch-size", 5, "--ranks", 2, "--seed", 4, "--epoch", 2, "--step", 3)
    expected = dlio.order(packed, batch_size=5, ranks=2, seed=4, epoch=2, step=3)
    assert lines(capsys, *words) == [key for batch in expected for key in batch.keys]
    assert lines(capsys, *words, "--rank", 1) == list(expected[1].keys)
    (shown,) = lines(capsys, *words, "--json")
    assert [tuple(batch["keys"]) for batch in json.loads(shown)["batches"]] == [batch.keys for batch in expected]
    torch.save(run_some(packed, 3)[1], tmp_path / "run.pt")
    assert lines(capsys, *words[:5], "--state", tmp_path / "run.pt")[:5] == run_some(packed, 1)[0][0]
    window = dlio.order(packed, batch_size=5, ranks=2, shuffle=Window(2), step=0)
    assert lines(capsys, *words[:5], "--step", 0, "--shuffle", 2, "--rank", 0) == list(window[0].keys)
    assert lines(capsys, *words[:5], "--step", 0, "--shuffle", "no", "--rank", 0) == [str(n) for n in range(1000, 1005)]
    assert cli.main(["order", str(packed.root), "--batch-size", "5", "--shuffle", "maybe"]) == UsageError.exit_code
    assert np.unique(lines(capsys, *words[:5])).size == 61
