"""What threads compute once, and children that are forked in the middle of it."""

from __future__ import annotations

import os
import signal
import threading
from dataclasses import dataclass

from dlio.cached import cached_property

_started, _go_on = threading.Event(), threading.Event()


@dataclass(frozen=True)
class _Item:
    waits: bool

    @cached_property
    def answer(self) -> object:
        if self.waits:
            _started.set()
            _go_on.wait(60)
        return object()


def test_a_property_is_computed_once() -> None:
    item = _Item(waits=False)
    assert item.answer is item.answer
    assert item.answer is not _Item(waits=False).answer


def test_a_fork_amid_a_property_leaves_no_lock() -> None:
    thread = threading.Thread(target=lambda: _Item(waits=True).answer)
    thread.start()
    assert _started.wait(60)
    child = os.fork()
    if child == 0:
        signal.alarm(30)
        os._exit(0 if _Item(waits=False).answer else 1)
    status = os.waitpid(child, 0)[1]
    _go_on.set()
    thread.join()
    assert status == 0
