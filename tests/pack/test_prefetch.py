"""Reading ahead: in order, bounded, each once, and as deep as the storage needs, never deeper."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import closing
from io import BytesIO

import pytest

from dlio.dataset.remote import REQUEST_BYTES
from dlio.dataset.shard import File
from dlio.io.remote_files import RemoteFiles
from dlio.pack import prefetch
from dlio.pack.prefetch import MOST_BYTES, MOST_READS, SLOW_SECONDS, Depth, Prefetcher, side_by_side


def deep(reads: int = 16) -> Depth:
    """Returns a depth that stays."""
    depth = Depth()
    depth.reads, depth.handed_out = reads, lambda waited: None  # type: ignore[method-assign]
    return depth


class TestDepth:
    def test_one_slow_read_is_a_pause_two_are_slowness(self):
        depth = Depth()
        depth.was_slow()
        assert depth.reads == 0
        depth.was_slow()
        assert depth.reads == 8

    def test_grows_while_the_caller_waits_up_to_its_bound(self):
        depth = Depth()
        depth.reads = 8
        for _ in range(1000):
            depth.handed_out(waited=True)
        assert depth.reads == MOST_READS

    def test_waits_for_what_was_begun_since_before_it_grows_again(self):
        depth = Depth()
        depth.reads = 8
        for _ in range(16):
            depth.handed_out(waited=True)
        assert depth.reads == 16

    def test_shrinks_to_none_where_nobody_waits(self):
        depth = Depth()
        depth.reads = MOST_READS
        for _ in range(1000):
            depth.handed_out(waited=False)
        assert depth.reads == 0

    def test_a_reader_that_waits_now_and_then_keeps_it(self):
        depth = Depth()
        depth.reads = 32
        for number in range(1000):
            depth.handed_out(waited=number % 40 == 39)
        assert 32 <= depth.reads <= MOST_READS


class TestPrefetcher:
    def test_reads_each_once_and_hands_out_in_order(self):
        read = Counter()
        lock = threading.Lock()

        def count(number: int) -> int:
            with lock:
                read[number] += 1
            return number * number

        with Prefetcher(count, [1] * 500, 500, deep()) as result:
            assert [result(number) for number in range(500)] == [number * number for number in range(500)]
        assert read == Counter(range(500))

    def test_from_memory_no_thread_is_started(self):
        with Prefetcher(lambda number: number, [1] * 1000, 1000, Depth(clock=lambda: 0.0)) as result:
            assert [result(number) for number in range(1000)] == list(range(1000))
            assert "dlio-reader" not in {thread.name for thread in threading.enumerate()}

    def test_a_busy_processor_is_not_taken_for_slow_storage(self):
        def compute(number: int) -> int:
            ends = time.thread_time() + 2 * SLOW_SECONDS
            while time.thread_time() < ends:
                pass
            return number

        depth = Depth()
        with Prefetcher(compute, [1] * 40, 40, depth) as result:
            for number in range(40):
                result(number)
        assert depth.reads == 0

    def test_reads_that_wait_are_made_by_threads(self):
        depth = Depth()
        with Prefetcher(lambda number: time.sleep(2 * SLOW_SECONDS), [1] * 40, 40, depth) as result:
            for number in range(4):
                result(number)
            assert depth.reads > 0

    def test_groups_give_the_same_as_single_reads(self):
        asked = []

        def read_group(numbers: range) -> Sequence[int | Exception]:
            asked.append(len(numbers))
            few = numbers[: 1 + len(numbers) // 2]
            found = [ValueError(number) if number % 500 == 3 else number for number in few]
            return found if any(number % 500 == 3 for number in few) else tuple(found)

        def read(number: int) -> int:
            found = read_group(range(number, number + 1))[0]
            if isinstance(found, Exception):
                raise found
            return found

        with Prefetcher(read, [1] * 2000, 2000, Depth(clock=lambda: 0.0), read_group) as result:
            for start, stop in ((0, 700), (630, 2000)):
                number = start
                while number < stop:
                    found = result.several(number, tuple)
                    if found is not None:
                        assert found == tuple(range(number, number + len(found)))
                        number += len(found)
                        continue
                    if number % 500 == 3:
                        with pytest.raises(ValueError, match=f"^{number}$"):
                            result(number)
                    else:
                        assert result(number) == number
                    number += 1
        assert max(asked) == 256

    def test_so_many_reads_are_under_way_and_no_more(self):
        began, lock, go = [], threading.Lock(), threading.Event()

        def wait(number: int) -> int:
            with lock:
                began.append(number)
                if len(began) == 16:
                    go.set()
            assert go.wait(60), "fewer were begun"
            return number

        with Prefetcher(wait, [1] * 100, 100, deep(16)) as result:
            assert result(0) == 0
            assert max(began) <= 16

    @pytest.mark.parametrize("size", [MOST_BYTES // 4, MOST_BYTES, 3 * MOST_BYTES])
    def test_bytes_are_bounded_with_what_is_in_use(self, size):
        held, most, lock = Counter(), [], threading.Lock()

        def read(number: int) -> int:
            with lock:
                held[number] = size
                most.append(sum(held.values()))
            return number

        with Prefetcher(read, [size] * 40, 40, deep(32)) as result:
            for number in range(40):
                result(number)
                with lock:
                    held.pop(number - 1, None)
        assert max(most) <= max(MOST_BYTES, 2 * size)

    def test_an_error_comes_in_turn_and_the_next_follows(self):
        def read(number: int) -> int:
            if number % 7 == 3:
                raise ValueError(number)
            return number

        with Prefetcher(read, [1] * 50, 50, deep()) as result:
            for number in range(50):
                if number % 7 == 3:
                    with pytest.raises(ValueError, match=f"^{number}$"):
                        result(number)
                else:
                    assert result(number) == number

    def test_asked_for_another_it_goes_on_from_there(self):
        with Prefetcher(lambda number: number, [1] * 100, 100, deep()) as result:
            assert [result(number) for number in (0, 1, 50, 51, 7, 99)] == [0, 1, 50, 51, 7, 99]

    def test_what_is_opened_is_closed_once_no_thread_reads_it(self):
        file = BytesIO(bytes(range(50)))
        with Prefetcher(lambda number: file.getvalue()[number], [1] * 50, 50, deep(), opened=[file]) as result:
            assert list(map(result, range(50))) == list(range(50))
        assert file.closed

    def test_an_interrupt_ends_a_read_that_hangs(self):
        go = threading.Event()

        def hang(number: int) -> int:
            go.wait()
            return number

        with pytest.raises(KeyboardInterrupt), Prefetcher(hang, [1] * 100, 100, deep()) as result:
            result._begin()
            raise KeyboardInterrupt
        go.set()


def test_slow_calls_made_side_by_side_give_the_same():
    names = set()

    def name(number: int) -> int:
        names.add(threading.current_thread().name)
        time.sleep(2 * SLOW_SECONDS)
        return -number

    assert list(side_by_side(name, range(300), Depth())) == [-number for number in range(300)]
    assert "dlio-reader" in names


def test_a_group_that_a_signal_ended_before_its_first_file_is_read_one_by_one():
    depth = Depth(clock=lambda: 0.0)
    depth.in_group = 8
    with Prefetcher(lambda number: number, [1] * 20, 20, depth, lambda numbers: ()) as result:
        assert result.several(0, tuple) is None
        assert result(0) == 0


@pytest.mark.parametrize("learned", ["_learned", "Depth"])
def test_blocks_of_a_file_at_a_url_are_bounded_in_bytes_from_the_first(
    monkeypatch: pytest.MonkeyPatch, learned: str
) -> None:
    begun, too_many = [], threading.Event()

    def fetch(files: RemoteFiles, name: str, start: int, end: int) -> bytes:
        begun.append((start, end))
        if len(begun) > MOST_BYTES // REQUEST_BYTES:
            too_many.set()
        too_many.wait(0.05 if start == 0 else 0)
        return b"block"

    monkeypatch.setattr(prefetch, "fetch_range", fetch)
    monkeypatch.setattr(prefetch, learned, deep(40) if learned == "_learned" else lambda: deep(40))
    size = 40 * REQUEST_BYTES - 1
    with closing(prefetch.blocks_at(RemoteFiles("memory://nowhere"), File("file", size, ""))) as blocks:
        assert next(blocks) == b"block"
        assert not too_many.is_set()
        assert len(list(blocks)) == 39
    assert sorted(begun)[-1] == (39 * REQUEST_BYTES, size)
