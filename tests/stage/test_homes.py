"""Which node owns a shard, and which keeps it: the same for all nodes, with few changes when nodes start or end."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from dlio.dataset.manifest import File, Manifest, Shard
from dlio.dataset.schema import Schema
from dlio.stage.planning import homes
from dlio.stage.planning.homes import PIECE_BYTES, assign_first, home_now, in_turn, order_alone
from dlio.stage.planning.plan import Plan, interleaved, kept_shards, partitioned

SIZES = st.lists(st.integers(0, 1000), min_size=1, max_size=60)
NODES = st.integers(1, 12)


def manifest_of(sizes: list[int]) -> Manifest:
    """Returns a data set of shards with a large and a small file each."""
    shards = [
        Shard(f"{number}", 1, (File(f"{number}.idx", 1, "a:b"), File(f"{number}.bin", size + 2, "a:b")))
        for number, size in enumerate(sizes)
    ]
    return Manifest("tfrecord", Schema.of({"image": "bytes"}, (), 0), tuple(shards))


@given(SIZES, NODES)
def test_homes_are_those_that_a_partition_places(sizes: list[int], num_nodes: int) -> None:
    placed = partitioned(manifest_of(sizes), num_nodes)
    assert assign_first([shard.num_bytes for shard in placed.shards], num_nodes) == [
        shard.nodes[0] for shard in placed.shards
    ]


@given(SIZES, NODES, st.sets(st.integers(0, 11)), st.integers(0, 11))
def test_a_lost_node_moves_its_own_shards_only(sizes: list[int], num_nodes: int, lost: set[int], one_more: int) -> None:
    placed = assign_first(sizes, num_nodes)
    before = [home_now(shard, home, num_nodes, lost.__contains__) for shard, home in enumerate(placed)]
    after = [home_now(shard, home, num_nodes, (lost | {one_more}).__contains__) for shard, home in enumerate(placed)]
    if not set(range(num_nodes)) - lost - {one_more}:
        return
    assert all(node not in lost for node in before) and all(node not in lost | {one_more} for node in after)
    assert all(old == new for old, new in zip(before, after, strict=True) if old != one_more)


def test_the_shards_of_a_lost_node_go_to_many_others() -> None:
    placed = assign_first([1] * 1000, 10)
    moved = Counter(home_now(shard, 3, 10, {3}.__contains__) for shard, home in enumerate(placed) if home == 3)
    assert len(moved) == 9 and max(moved.values()) < 30


def test_the_one_node_that_is_left_reads_all() -> None:
    lost = set(range(2000)) - {1234}
    assert {home_now(shard, 7, 2000, lost.__contains__) for shard in range(20)} == {1234}


@given(SIZES, NODES, st.integers(0, 70_000))
def test_caches_hold_their_own_shards_first_and_never_more_than_fits(
    sizes: list[int], num_nodes: int, room: int
) -> None:
    placed = assign_first(sizes, num_nodes)
    for node in range(num_nodes):
        kept = kept_shards(sizes, placed, node, num_nodes, room)
        own = [shard for shard, home in enumerate(placed) if home == node]
        assert sum(sizes[shard] for shard in kept) <= room
        assert set(own) <= set(kept) or any(sizes[shard] > 0 for shard in set(own) - set(kept))
        if sum(sizes[shard] for shard in own) <= room:
            assert set(own) <= set(kept)


@given(st.integers(1, 8), st.integers(0, 10))
def test_the_sum_of_the_caches_counts(num_nodes: int, each: int) -> None:
    """Equal shards, caches of `each` shards: together they hold as many shards as they have room for."""
    sizes = [1] * 40
    placed = assign_first(sizes, num_nodes)
    held = {shard for node in range(num_nodes) for shard in kept_shards(sizes, placed, node, num_nodes, each)}
    own = max(Counter(placed).values())
    assert len(held) == min(num_nodes * each, 40) or each > own - 1


@given(SIZES, NODES)
def test_a_node_alone_begins_with_its_own(sizes: list[int], num_nodes: int) -> None:
    placed = assign_first(sizes, num_nodes)
    for node in range(num_nodes):
        order = order_alone(placed, node, num_nodes)
        assert sorted(order) == list(range(len(sizes)))
        num_own = placed.count(node)
        assert all(placed[shard] == node for shard in order[:num_own])
        for home in range(num_nodes):  # which are asked for what they read next themselves
            theirs = [shard for shard in range(len(sizes)) if placed[shard] == home]
            assert [shard for shard in order if placed[shard] == home] == theirs
        present = [(node + step) % num_nodes for step in range(1, num_nodes)]
        first = [home for home in present if home in placed]
        assert [placed[shard] for shard in order[num_own : num_own + len(first)]] == first


def test_ranks_take_turns_and_nothing_is_left_out() -> None:
    assert interleaved([[5, 4], [4, 3, 2]], [0, 1, 2, 3, 4, 5]) == [5, 4, 3, 2, 0, 1]


@given(SIZES, NODES, st.lists(st.lists(st.integers(-5, 70))))
def test_each_kept_file_is_fetched_once_small_ones_first(
    sizes: list[int], num_nodes: int, told: list[list[int]]
) -> None:
    manifest = manifest_of(sizes)
    for node in (0, num_nodes - 1):
        plan = Plan(manifest, node, num_nodes)
        order = plan.order(told)
        assert sorted(order) == list(range(2 * len(sizes))) == sorted(plan.kept)
        assert all(plan.listed[number].name.endswith(".idx") for number in order[: len(sizes)])


@given(SIZES, NODES)
def test_a_part_keeps_its_shards_and_the_small_files_of_all(sizes: list[int], num_nodes: int) -> None:
    for node in range(num_nodes):
        plan = Plan(replace(partitioned(manifest_of(sizes), num_nodes), node=node), node, num_nodes)
        names = {plan.listed[number].name for number in plan.kept}
        assert names == {f"{number}.idx" for number in range(len(sizes))} | {file.name for file in plan.wanted}
        assert plan.is_whole
        assert all(plan.home(number) == node for number, file in enumerate(plan.listed) if file in plan.wanted)


ROOMS = st.lists(st.integers(0, 20_000), min_size=2, max_size=8)


@given(SIZES, ROOMS, st.integers(0, 1))
def test_nodes_of_different_rooms_agree_on_homes_that_keep_what_they_own(
    sizes: list[int], rooms: list[int], has_large: int
) -> None:
    """If all together hold the set, as far as shards do not leave gaps."""
    sizes = sizes + [sum(sizes) // 2 + 1] * has_large
    manifest = manifest_of(sizes)
    with mock.patch.object(homes, "PIECE_BYTES", 100):
        alone = [Plan(manifest, node, len(rooms), room) for node, room in enumerate(rooms)]
        plans = [replace(plan, rooms=tuple(rooms)) for plan in alone]
        assert all(before.kept <= plan.kept for before, plan in zip(alone, plans, strict=True))
        for before in (plan for plan in alone if plan.is_waiting):
            own = [shard for shard in before.kept_shards if before.home_of[shard] == before.node]
            assert own == before.kept_shards
            assert {plans[0].home_of[shard] for shard in own} <= {before.node}
        held = frozenset[int]().union(*(plan.kept for plan in plans))
        if sum(rooms) >= manifest.num_bytes + len(rooms) * max(shard.num_bytes for shard in manifest.shards):
            assert len(held) == len(plans[0].listed)
        for number in held:
            size = plans[0].listed[number].num_bytes
            for begin in range(0, size, 100):
                [home] = {plan.home(number, begin=begin) for plan in plans}
                assert number in plans[home].kept
            for plan in plans:
                own, others = (list(plan.share(number, [(0, size)], is_own=is_own)) for is_own in (True, False))
                assert {plan.home(number, begin=begin) for begin, _ in own} <= {plan.node}
                assert plan.node not in {plan.home(number, begin=begin) for begin, _ in others}
                assert sum(end - begin for begin, end in own + others) == size


LARGE = st.lists(st.integers(0, 30 * PIECE_BYTES), min_size=1, max_size=4)


@given(LARGE, st.integers(2, 12))
def test_all_nodes_read_about_as_much_of_large_shards(sizes: list[int], num_nodes: int) -> None:
    """And each byte is one node's, whichever of them says so."""
    plans = [Plan(manifest_of(sizes), node, num_nodes) for node in range(num_nodes)]
    read = [0] * num_nodes
    for number, file in enumerate(plans[0].listed):
        whole, own = [(0, file.num_bytes)], list[tuple[int, int]]()
        for plan in plans:
            spans = list(plan.share(number, whole, is_own=True))
            assert sorted([*spans, *plan.share(number, whole, is_own=False)])[-1][1] == file.num_bytes
            assert all(plan.home(number, begin=each) == plan.node for begin, end in spans for each in (begin, end - 1))
            own += spans
            read[plan.node] += sum(end - begin for begin, end in spans)
        assert [begin for begin, _ in sorted(own)] == [0, *(end for _, end in sorted(own)[:-1])]
    largest = max(sum(read) / num_nodes / 4, PIECE_BYTES)  # that is not divided
    assert max(read) <= sum(read) / num_nodes + 2 * largest


@given(st.integers(2, 12), st.integers(1, 20), st.integers(0, 19))
def test_no_two_nodes_ask_the_same_one_at_a_time(num_nodes: int, turns: int, begin: int) -> None:
    """Each goes through the others in rounds, from what is missing first on."""
    turn = num_nodes * PIECE_BYTES
    spans = [(begin % turns * turn, turns * turn)]
    rest = [[each for each, _ in in_turn(spans, 0, num_nodes, node, is_own=False)] for node in range(num_nodes)]
    for asked in zip(*rest, strict=True):
        assert len({each // PIECE_BYTES % num_nodes for each in asked}) == num_nodes
        assert len({each // turn for each in asked}) == 1
    assert [each // turn for each in rest[0]] == sorted(each // turn for each in rest[0])


def test_only_the_pieces_of_a_lost_node_move_and_to_many_others() -> None:
    plan = Plan(manifest_of([1000 * PIECE_BYTES]), 0, 10)
    begins = range(0, 1000 * PIECE_BYTES, PIECE_BYTES)
    before, after = ([plan.home(1, lost.__contains__, begin) for begin in begins] for lost in ((), {3}))
    moved = Counter(new for old, new in zip(before, after, strict=True) if old == 3)
    assert all(old in (new, 3) for old, new in zip(before, after, strict=True))
    assert sorted(moved) == [0, 1, 2, 4, 5, 6, 7, 8, 9] and max(moved.values()) < 30


def test_a_shard_is_divided_only_if_it_is_large_for_the_nodes_and_all_keep_it() -> None:
    many, few = manifest_of([2 * PIECE_BYTES] * 100), manifest_of([2 * PIECE_BYTES] * 3)
    assert Plan(few, 0, 4).divides and not Plan(few, 0, 1).divides and not Plan(many, 0, 4).divides
    assert Plan(many, 0, 40).divides
    assert not Plan(manifest_of([PIECE_BYTES - 3] * 3), 0, 4).divides
    short, full, unknown = few.num_bytes - 1, few.num_bytes, None
    assert Plan(few, 0, 4, short).divides and Plan(few, 0, 4, short, (short, unknown, full, short)).divides
    assert not Plan(few, 0, 4, short, (short, unknown, short, short)).divides
    assert not Plan(replace(partitioned(few, 4), node=1), 1, 4).divides


@given(st.lists(st.integers(0, 200), min_size=2, max_size=12, unique=True), st.integers(2, 7), st.integers(0, 9))
def test_what_is_missing_is_shared_out_as_the_whole_is(ends: list[int], num_nodes: int, first: int) -> None:
    step = PIECE_BYTES // 8
    ordered = [each * step for each in sorted(ends)][: len(ends) // 2 * 2]
    spans = list(zip(ordered[::2], ordered[1::2], strict=True))
    shares = [
        each
        for node in range(num_nodes)
        for each in in_turn(spans, first, num_nodes, node, is_own=True)
        if (first + each[0] // PIECE_BYTES) % num_nodes == node
    ]
    assert sum(end - begin for begin, end in shares) == sum(end - begin for begin, end in spans)
    others = list(in_turn(spans, first, num_nodes, 0, is_own=False))
    own = list(in_turn(spans, first, num_nodes, 0, is_own=True))
    assert sorted(others + own) == sorted(shares)
