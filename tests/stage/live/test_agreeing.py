"""Digests that nodes compare before they publish, while a node that could tell has ended, or is late."""

from __future__ import annotations

import logging
import os
from contextlib import closing
from pathlib import Path

import pytest

from dlio.cluster import liveness
from dlio.errors import DigestError
from dlio.io import files, world
from dlio.stage.copies.learned import Learned
from dlio.stage.copies.live_folder import AGENT, LiveFolder
from dlio.stage.engine.fetch import Fetching
from dlio.stage.meeting import meeting, peer
from dlio.stage.meeting.agreeing import agree
from dlio.stage.planning import homes
from tests.helpers.live import are_patient, eventually, is_complete, meet_in, met, prepared, task, working
from tests.helpers.staging import MiB


@pytest.fixture
def image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file without a digest, of four pieces."""
    monkeypatch.setattr(homes, "PIECE_BYTES", MiB // 4)
    meet_in(tmp_path / "meet", monkeypatch)
    are_patient(monkeypatch)
    (path := tmp_path / "image.bin").write_bytes(os.urandom(MiB - 7))
    return path


def test_the_last_node_reads_the_source_at_once_and_shows_that_it_lives_even_while_that_hangs(
    image: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "BEAT_SECONDS", 0.01)
    with working(task(image, tmp_path / "1", 1, 2)) as last:
        with working(task(image, tmp_path / "0", 0, 2)) as first:
            eventually(lambda: is_complete(first) and is_complete(last))
        assert last.store.learned.was_received(image.name)
        record, before = LiveFolder(last.folder).path / AGENT, last.fetching.source_bytes
        with caplog.at_level(logging.WARNING):
            last.publish()
        assert "no other node knows the digests" not in caplog.text
        assert last.fetching.source_bytes - before == MiB - 7

        def lives(_: Fetching, number: int) -> str:
            os.utime(record, (0, 0))
            eventually(lambda: record.stat().st_mtime > 0)
            return last.store.learned.get(last.plan.listed[number].name)

        monkeypatch.setattr(Fetching, "digest_at_source", lives)
        last.publish()


def test_the_source_decides_which_of_two_nodes_is_right(
    image: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The bytes of one have changed on their way, and the other one must not lose its own for that."""
    error = r"node 1 .*, which got pieces of it from others, too, has .*, and the source has"
    first, second = (working(task(image, tmp_path / str(node), node, 2)) for node in range(2))
    with second as right, pytest.raises(DigestError, match=error), first as wrong, caplog.at_level(logging.WARNING):
        eventually(lambda: is_complete(right) and is_complete(wrong))
        file = next(each for each in wrong.plan.listed if each.name == image.name)
        wrong.store.learned.check(file, f"{files.DEFAULT_DIGEST}:{1:032x}", str)
        right.publish()
    assert "node 0 (" in caplog.text and "matches the source: stage again on that node" in caplog.text
    assert [path.parts[len(tmp_path.parts)] for path in tmp_path.glob(f"*/dlio/*/{image.name}")] == ["1"]


def test_a_node_that_awaits_a_digest_is_not_taken_for_stuck(
    image: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its copy has taken an hour."""
    _, plan, folder = prepared(task(image, tmp_path / "1", 1, 2))
    folder.path.mkdir(parents=True)
    (folder.path / ".dlio").mkdir()
    now = [1000.0]
    monkeypatch.setattr(meeting, "JOIN_SECONDS", 1e9)
    monkeypatch.setattr(world, "monotonic", lambda: now[0])
    monkeypatch.setattr(world, "sleep", lambda _: now.__setitem__(0, now[0] + 5))
    with closing(Learned(folder.path)) as learned:
        learned.receives(image.name)
        agree(met("content", 1, 2), plan, folder.path, learned, lambda _: "", 3600.0)
    assert 100 < now[0] - 1000 < 0.9 * peer.STUCK_SECONDS
