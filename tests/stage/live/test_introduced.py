"""Nodes that know each other's addresses ask each other how far they are."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from dlio.cluster import liveness
from dlio.dataset.manifest import Manifest
from dlio.errors import StorageError
from dlio.io import world
from dlio.io.world.own_address import INTERFACE
from dlio.stage.copies.ownership import open_for_us
from dlio.stage.engine.node import Node
from dlio.stage.meeting import introduced
from dlio.stage.meeting.introduced import Introduced
from dlio.stage.meeting.meeting import Meeting
from dlio.stage.protocol.tcp import TOKEN_BYTES, TcpListener, listening_at
from tests.helpers.live import eventually, task


@pytest.fixture
def pair(source: Manifest, tmp_path: Path) -> Iterator[list[Node]]:
    """Two nodes that have been introduced to each other, at work in this process."""
    content, token = source.content_id, os.urandom(TOKEN_BYTES)
    listening = [listening_at("127.0.0.1") for _ in range(2)]
    addresses = [each.getsockname()[:2] for each in listening]
    with ExitStack() as stack:
        nodes = []
        for rank, each in enumerate(listening):
            place = Introduced(content, token, rank, addresses, TcpListener(each, token, content))
            job, plan, folder = task(source.root, tmp_path / f"node{rank}", rank, 2).prepared()
            open_for_us(folder)
            folder.begin(str(job.source))
            meeting = Meeting(place, rank, 2)
            nodes.append(stack.enter_context(closing(Node(job, plan, folder, is_hurried=True, meeting=meeting))))
            nodes[-1].begin()
        yield nodes


def test_a_node_that_is_asked_seldom_is_not_taken_for_lost(pair: list[Node], monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of ten thousand, all of whom a node cannot ask within the time after which a silent one is lost."""
    meeting = pair[0].meeting
    assert meeting
    eventually(lambda: meeting.peer(1) is not None)
    monkeypatch.setattr(introduced, "_SOON_SECONDS", 60.0)
    time.sleep(0.6)  # the round under way is the last one
    meeting.peer(1, fresh=0.0)
    monkeypatch.setattr(liveness, "LOST_SECONDS", 0.1)
    time.sleep(0.3)
    assert meeting.peer(1, fresh=0.0) is not None
    assert list(meeting.lost()) == []


def test_a_place_where_this_node_cannot_listen_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(INTERFACE, "192.0.2.7")
    with pytest.raises(StorageError, match=r"does not listen at 192\.0\.2\.7: Cannot assign .*DLIO_INTERFACE names"):
        listening_at(world.address())
