"""Seconds that a thread has waited for storage: its own, since it last asked."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from dlio.io import waits


def test_each_thread_has_its_own_seconds_and_takes_them_once() -> None:
    waits.taken()
    with ThreadPoolExecutor(1) as other:
        for _ in range(2):
            waits.note(0.25)
            other.submit(waits.note, 2.0).result()
        assert waits.taken() == 0.5
        assert waits.taken() is None
        assert other.submit(waits.taken).result() == 4.0
