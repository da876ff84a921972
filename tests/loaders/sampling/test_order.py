"""The order of an epoch and each rank's part of it: every sample once, equal steps, independent of the topology."""

from __future__ import annotations

import time
import tracemalloc
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dlio.dataset.manifest import File, Manifest, Shard
from dlio.dataset.schema import IMAGE_CLASSIFICATION
from dlio.errors import UsageError
from dlio.io import files
from dlio.loaders.sampling.order import EpochOrder, Shuffle, Window, deal_shards, epoch_order
from dlio.loaders.sampling.rank_share import End, RankSteps, Share, rank_steps

SHUFFLES = st.one_of(st.booleans(), st.builds(Window, st.integers(1, 6)))


def manifest_of(sizes: list[int], data_format: str = "tfrecord") -> Manifest:
    """Returns the manifest of a data set with shards of these sizes; no file of it exists."""
    shards = tuple(Shard(f"s{i}", n, (File(f"s{i}.{data_format}", 1, "xxh3-128:0"),)) for i, n in enumerate(sizes))
    return Manifest(data_format, IMAGE_CLASSIFICATION, shards, root=Path("packed"))


@st.composite
def layouts(draw: st.DrawFn) -> tuple[EpochOrder, int, int]:
    """Draws an order, a world size that its lanes can be shared by, and a batch size."""
    lanes = draw(st.sampled_from([1, 2, 3, 4, 6]))
    world_size = draw(st.sampled_from([n for n in range(1, 13) if n % lanes == 0 or lanes % n == 0]))
    batch_size = draw(st.integers(1, 5)) * max(1, lanes // world_size)
    sizes = draw(st.lists(st.integers(0, 12), min_size=lanes, max_size=12))
    sizes[:lanes] = [n + 1 for n in sizes[:lanes]]
    order = epoch_order(
        manifest_of(sizes),
        seed=draw(st.integers(0, 99)),
        epoch=draw(st.integers(0, 9)),
        shuffle=draw(SHUFFLES),
        lanes=lanes,
    )
    return order, world_size, batch_size


def all_ranks(order: EpochOrder, world_size: int, batch_size: int, end: End, start: int = 0) -> list[RankSteps]:
    shares = [Share(rank, world_size, batch_size, len(order.lanes)) for rank in range(world_size)]
    return [RankSteps(order, share, end, start) for share in shares]


def indices(steps: RankSteps, *, valid_only: bool = False) -> list[int]:
    return [i for step in steps for i in step.indices[step.valid | (not valid_only)].tolist()]


@given(layout=layouts())
def test_masked_epoch_has_every_sample_exactly_once(layout: tuple[EpochOrder, int, int]) -> None:
    order, world_size, batch_size = layout
    ranks = all_ranks(order, world_size, batch_size, End.MASK)
    seen = [i for steps in ranks for i in indices(steps, valid_only=True)]
    assert sorted(seen) == list(range(int(order.offsets[-1])))


@given(layout=layouts())
def test_a_padded_epoch_repeats_as_few_samples_as_possible(layout: tuple[EpochOrder, int, int]) -> None:
    order, world_size, batch_size = layout
    seen = [i for steps in all_ranks(order, world_size, batch_size, End.PAD) for i in indices(steps)]
    assert set(seen) == set(range(int(order.offsets[-1])))
    ranks_per_lane = max(1, world_size // len(order.lanes))
    assert len(seen) == len(order.lanes) * -(-int(order.lane_sizes.max()) // ranks_per_lane) * ranks_per_lane


@given(layout=layouts())
def test_dropped_epoch_repeats_nothing_and_has_whole_batches_only(layout: tuple[EpochOrder, int, int]) -> None:
    order, world_size, batch_size = layout
    ranks = all_ranks(order, world_size, batch_size, End.DROP)
    seen = [i for steps in ranks for i in indices(steps)]
    assert len(set(seen)) == len(seen) == len(ranks[0]) * batch_size * world_size
    left_in_shortest = int(order.lane_sizes.min()) - len(ranks[0]) * ranks[0].share.lane_batch
    assert 0 <= left_in_shortest < ranks[0].share.lane_batch


UNEVEN_LANES = epoch_order(manifest_of([4, 1]), seed=0, epoch=0, shuffle=False, lanes=2)


@given(layout=layouts(), end=st.sampled_from(End), start=st.integers(0, 30))
@example((UNEVEN_LANES, 2, 1), End.DROP, 0)
def test_all_ranks_take_equal_steps_of_equal_batches(layout: tuple[EpochOrder, int, int], end: End, start: int) -> None:
    order, world_size, batch_size = layout
    ranks = all_ranks(order, world_size, batch_size, end, start)
    sizes = [[len(step.indices) for step in steps] for steps in ranks]
    by_number = [ranks[0][i] for i in range(len(ranks[0]))]
    assert [step.indices.tolist() for step in ranks[0]] == [step.indices.tolist() for step in by_number]
    assert sizes == [sizes[0]] * world_size
    assert all(0 < size <= batch_size for size in sizes[0])


@given(layout=layouts(), data=st.data())
def test_global_batches_do_not_depend_on_the_number_of_ranks(
    layout: tuple[EpochOrder, int, int], data: st.DataObject
) -> None:
    order, _, _ = layout
    lanes = len(order.lanes)
    global_batch = 12 * data.draw(st.integers(1, 2))
    worlds = [n for n in (1, 2, 3, 4, 6, 12) if n % lanes == 0 or lanes % n == 0]
    batches = []
    for world_size in worlds:
        ranks = all_ranks(order, world_size, global_batch // world_size, End.DROP)
        together = zip(*ranks, strict=True)
        batches.append([sorted(i for step in steps for i in step.indices.tolist()) for steps in together])
    assert batches == batches[:1] * len(worlds)


@given(layout=layouts(), data=st.data())
def test_a_stopped_epoch_goes_on_with_another_number_of_ranks(
    layout: tuple[EpochOrder, int, int], data: st.DataObject
) -> None:
    order, world_size, batch_size = layout
    lanes = len(order.lanes)
    before = all_ranks(order, world_size, batch_size, End.DROP)
    stop = data.draw(st.integers(0, len(before[0])))
    seen = [i for steps in before for step in islice(steps, stop) for i in step.indices.tolist()]
    world_size = data.draw(st.sampled_from([n for n in (1, 2, 3, 4, 6, 12) if n % lanes == 0 or lanes % n == 0]))
    after = all_ranks(order, world_size, max(1, lanes // world_size), End.MASK, before[0].consumed(stop))
    seen += [i for steps in after for i in indices(steps, valid_only=True)]
    assert sorted(seen) == list(range(int(order.offsets[-1])))


@given(sizes=st.lists(st.integers(0, 30), min_size=1, max_size=9), window=st.integers(1, 4), seed=st.integers(0, 9))
def test_a_window_mixes_only_samples_of_its_shards(sizes: list[int], window: int, seed: int) -> None:
    sizes[0] += 1
    order = epoch_order(manifest_of(sizes), seed=seed, shuffle=Window(window))
    shards = np.searchsorted(order.offsets, order.lane(0).indices(np.arange(sum(sizes))), side="right") - 1
    last_seen = {int(shard): place for place, shard in enumerate(shards)}
    open_shards: set[int] = set()
    for place, shard in enumerate(shards.tolist()):
        open_shards.add(shard)
        assert len(open_shards) <= window
        open_shards -= {other for other in open_shards if last_seen[other] <= place}


def order_of(shuffle: Shuffle, seed: int = 0, epoch: int = 0, data_format: str = "tfrecord") -> list[int]:
    order = epoch_order(manifest_of([40, 7, 53], data_format), seed=seed, epoch=epoch, shuffle=shuffle)
    return order.lane(0).indices(np.arange(100)).tolist()


def test_without_shuffle_samples_come_as_packed() -> None:
    assert order_of(False) == order_of(False, epoch=3) == list(range(100))


@pytest.mark.parametrize("shuffle", [True, Window(1), Window(2)])
def test_order_depends_on_epoch_and_seed_not_on_format(shuffle: Shuffle) -> None:
    orders = [tuple(order_of(shuffle, seed, epoch)) for seed in range(3) for epoch in range(3)]
    assert len(set(orders)) == 9
    assert order_of(shuffle) == order_of(shuffle, data_format="lmdb")


@given(sizes=st.lists(st.integers(1, 1000), min_size=1, max_size=60), num_lanes=st.integers(1, 8))
def test_lanes_share_out_all_shards_evenly(sizes: list[int], num_lanes: int) -> None:
    lanes = deal_shards(np.array(sizes), num_lanes)
    assert sorted(shard for lane in lanes for shard in lane.tolist()) == list(range(len(sizes)))
    loads = [sum(sizes[shard] for shard in lane) for lane in lanes]
    assert max(loads) - min(loads) <= max(sizes)


def test_a_billion_samples_on_4096_ranks_are_planned_at_once() -> None:
    manifest = manifest_of([10_000] * 100_000)
    _ = manifest.offsets
    tracemalloc.start()
    began = time.process_time()
    order = epoch_order(manifest, seed=1, shuffle=True)
    steps = rank_steps(order, Share(4095, 4096, 256))
    first, last = steps[0], steps[len(steps) - 1]
    seconds = time.process_time() - began
    _, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(steps) == 10**9 // (4096 * 256)
    assert len({*first.indices.tolist(), *last.indices.tolist()}) == 512
    assert peak_bytes < 200e6
    assert seconds < 10  # 0.1 s when measured; the bound only catches a plan in proportion to the samples


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Share(0, 1, 0), "batch size"),
        (lambda: Share(2, 2, 4), "rank 2 of 2"),
        (lambda: Share(0, 3, 4, 2), "one must divide the other"),
        (lambda: Share(0, 2, 3, 4), "multiple of 2"),
        (lambda: Window(0), "window of 0"),
        (lambda: Window(1.5), "window of 1.5"),  # type: ignore[arg-type]
        (lambda: epoch_order(manifest_of([3, 3]), shuffle="yes"), "shuffle='yes': expected True"),  # type: ignore[arg-type]
        (lambda: epoch_order(manifest_of([3, 3]), lanes=0), "0 lanes"),
        (lambda: epoch_order(manifest_of([3, 3]), lanes=3), "lane 2 of 3 has no samples"),
        (lambda: epoch_order(manifest_of([])), "has no samples"),
        (lambda: rank_steps(epoch_order(manifest_of([7])), Share(1, 4, 2)), "no complete batch: 4 ranks"),
    ],
)
def test_what_cannot_be_carried_out_says_why(make: object, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()  # type: ignore[operator]


def test_steps_end() -> None:
    steps = rank_steps(epoch_order(manifest_of([10])), Share(0, 1, 4), End.PAD)
    assert [len(step.indices) for step in steps] == [4, 4, 2]
    with pytest.raises(IndexError, match="step 3 of 3"):
        steps[3]


def test_each_part_that_is_staged_is_a_lane() -> None:
    whole = manifest_of([2, 3, 4])
    parts = tuple(shard.replace(nodes=(node,)) for shard, node in zip(whole.shards, (1, 0, 1), strict=True))
    order = epoch_order(replace(whole, shards=parts))
    assert [lane.tolist() for lane in order.lanes] == [[1], [0, 2]]
    with pytest.raises(UsageError, match="is staged in 2 parts, and each part is a lane"):
        epoch_order(replace(whole, shards=parts), lanes=1)


def test_the_largest_shard_left_goes_to_the_lane_with_fewest_samples() -> None:
    lanes = deal_shards(np.array([1, 6, 1, 1, 1, 1, 1]), 2)
    assert [lane.tolist() for lane in lanes] == [[1], [0, 2, 3, 4, 5, 6]]


@pytest.mark.parametrize(
    "shuffle, lanes, expected",
    [
        (True, 1, "29040781cc37ce61"),
        (False, 1, "01ad26edb7f4ccad"),
        (Window(2), 1, "de364335100a4edc"),
        (True, 3, "f8dffc3fe05a6677"),
        (Window(2), 2, "2fb994c528acef67"),
    ],
    ids=str,
)
def test_an_order_is_the_same_in_every_version(shuffle: Shuffle, lanes: int, expected: str) -> None:
    """A run that is resumed after an upgrade continues in its order."""
    orders = [epoch_order(manifest_of([5, 9, 4, 7, 8, 6]), seed=3, epoch=epoch, shuffle=shuffle, lanes=lanes)
              for epoch in (0, 5)]  # fmt: skip
    text = str([order.lane(lane).indices(np.arange(order.lane_sizes[lane])).tolist()
                for order in orders for lane in range(lanes)])  # fmt: skip
    assert files.digest_bytes(text.encode()).partition(":")[2][:16] == expected
