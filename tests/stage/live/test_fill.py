"""The order of a fill: what a loader waits for comes first, and no one else waits for ever."""

from __future__ import annotations

import math
import threading
from pathlib import Path

import pytest

from dlio.dataset.manifest import File
from dlio.stage.cache.access import Access
from dlio.stage.cache.folder import StagedFolder
from dlio.stage.live.agent import fill as filling
from dlio.stage.live.agent.fill import Fill
from dlio.stage.live.agent.store import Store
from dlio.stage.live.folder import FILES, LiveFolder
from dlio.stage.live.wire import Origin
from dlio.stage.transfer.copy import Copying
from tests.helpers.live import eventually
from tests.helpers.staging import MiB

_URGENT, _AHEAD = 0, 1
_BEFORE = 8  # pieces that loaders get while what is asked ahead is not overdue


def test_what_another_node_asks_ahead_is_not_held_up_for_ever(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread fetches, and a loader always waits: what is asked ahead comes once it is overdue, and not before."""
    monkeypatch.setattr(filling, "_OVERDUE_SECONDS", math.inf)
    order, size = list[int](), 64 * MiB
    asks, given = threading.Event(), threading.Event()

    def fetch(number: int, begin: int, target: memoryview, *_: bool) -> Origin:
        order.append(number)
        if number == _URGENT and begin < size - MiB:  # the loader asks for the next before it has got this
            fill._ask(_URGENT, [(begin + MiB, begin + 2 * MiB)], is_urgent=True, comes_first=True)
            assert asks.wait(60)
            if len(order) == _BEFORE:
                monkeypatch.setattr(filling, "_OVERDUE_SECONDS", -1.0)
            if len(order) > _BEFORE:
                given.wait(0.2)
        return Origin.SOURCE

    def ask_ahead() -> None:
        fill.need(_AHEAD, [(0, MiB)], is_urgent=False)
        given.set()

    live = LiveFolder(StagedFolder(tmp_path, "0" * 32))
    live.staged.path.mkdir(parents=True)
    live.make()
    listed = [File(name, size, "sha256:" + "0" * 64) for name in ("urgent.bin", "ahead.bin")]
    copying = Copying(live.path / FILES, live.staged.path, lambda file: Access(0o644))
    fill = Fill(Store(live, listed, {_URGENT, _AHEAD}, copying), fetch, str)
    fill._ask(_URGENT, [(0, MiB)], is_urgent=True, comes_first=True)
    node = threading.Thread(target=ask_ahead)
    node.start()
    fill.start(1)
    eventually(lambda: bool(fill._pending._asked_ahead))
    asks.set()
    node.join(60)
    assert fill.stop() and not node.is_alive()
    assert _BEFORE <= order.index(_AHEAD) < size // MiB - 1
