"""Locks that a forked child can take, even if a thread of its parent held them."""

from __future__ import annotations

import os
import signal
import threading

from dlio.locking.fork_lock import ForkLock


def test_a_forked_child_finds_the_lock_free() -> None:
    lock = ForkLock()
    held, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            held.set()
            go_on.wait(60)

    thread = threading.Thread(target=hold)
    thread.start()
    assert held.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        with lock:
            os._exit(0)
    status = os.waitpid(child, 0)[1]
    go_on.set()
    thread.join()
    assert status == 0


def test_one_thread_at_a_time_holds_it() -> None:
    lock, order = ForkLock(), []

    def note() -> None:
        with lock:
            order.append("second")

    thread = threading.Thread(target=note)
    with lock:
        thread.start()
        order.append("first")
    thread.join()
    assert order == ["first", "second"]
