"""Striping over a Lustre that is a stand-in (tests/stage/lfs), and several nodes that fill one folder."""

from __future__ import annotations

import os
import struct
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dlio
from dlio.dataset.manifest import NAME, Manifest
from dlio.errors import DlioError, StorageError, UsageError
from dlio.io import lustre as lustre_commands
from dlio.io.lustre import Layout, layout_of, parse_lov, stripe_count
from dlio.stage.planning.job import Options
from dlio.stage.run import preview, run
from tests.helpers.forked import Forked, wait_for
from tests.helpers.staging import MiB, assert_staged, damaged_files, node, write_dataset


@pytest.fixture
def lustre(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that `lfs` takes for Lustre with four targets, of which number 2 is down."""
    folder = tmp_path / "lustre"
    folder.mkdir()
    try:
        os.setxattr(folder, "user.probe", b"")
    except OSError:
        pytest.skip("the stand-in needs user attributes")
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "lfs").write_text(f'#!/bin/sh\nexec {sys.executable} -I -S "{Path(__file__).with_name("lfs")}" "$@"\n')
    (tools / "lfs").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("LFS_MOUNT", str(folder))
    monkeypatch.setenv("LFS_INACTIVE", "2")
    return folder


def layouts(staged: Manifest) -> list[Layout]:
    return [layout_of(staged.root / shard.files[0].name) for shard in staged.shards]


@pytest.mark.parametrize(
    ("num_bytes", "num_files", "targets", "count"),
    [(1 << 28, 1000, 56, 1), (1 << 28, 28, 56, 2), (1 << 28, 3, 56, 19), (10**8, 1, 56, 1), (5 * 10**9, 1, 56, 8),
     (5 * 10**10, 1, 56, 24), (10**12, 1, 56, 56), (10**12, 1, 100, 72), (5, 2, 56, 1), (0, 1, 4, 1), (10**9, 0, 4, 4)],
)  # fmt: skip
def test_large_files_are_striped_over_more_targets(num_bytes: int, num_files: int, targets: int, count: int) -> None:
    assert stripe_count(num_bytes, num_files, targets) == count


@given(st.integers(0, 10**15), st.integers(1, 10**6), st.integers(1, 2000))
def test_policy_stays_within_the_targets_and_uses_them(num_bytes: int, num_files: int, targets: int) -> None:
    count = stripe_count(num_bytes, num_files, targets)
    assert 1 <= count <= targets
    if num_files > 1 and num_bytes >= targets * (4 << 20):
        assert count * num_files >= targets


def test_files_are_laid_out_before_their_first_byte(lustre: Path, tmp_path: Path) -> None:
    source = write_dataset(tmp_path / "source", [9 * MiB, 9 * MiB])
    staged = dlio.stage(source, lustre, strategy="stripe")
    assert_staged(staged, source)
    assert [(layout.count, layout.size) for layout in layouts(staged)] == [(2, 4 * MiB)] * 2


def test_what_the_user_asks_for_wins(lustre: Path, dataset: Manifest) -> None:
    options = Options(stripe_count=2, stripe_size=MiB, pool="flash")
    staged, _ = run(dataset, lustre, strategy="stripe", options=options)
    assert_staged(staged, dataset)
    assert {(layout.count, layout.size, layout.pool) for layout in layouts(staged)} == {(2, MiB, "flash")}


def test_one_target_per_file_skips_those_that_are_down(lustre: Path, dataset: Manifest) -> None:
    staged, _ = run(dataset, lustre, strategy="stripe", options=Options(ost_per_rank=True))
    assert [(layout.count, layout.first) for layout in layouts(staged)] == [(1, first) for first in (0, 1, 3) * 3][:7]


def test_a_dry_run_shows_the_placement(lustre: Path, dataset: Manifest) -> None:
    options = Options(ost_per_rank=True, stripe_size=MiB)
    shown = preview(dataset, lustre, strategy="stripe", options=options, topology=node(0, 2))
    assert shown.layout.startswith("3 files over 1 target from target 0 on, 1,048,576 bytes in turn; 2 files over ")
    assert not list(lustre.iterdir())


def test_no_active_target_is_said(lustre: Path, dataset: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LFS_INACTIVE", "0,1,2,3")
    with pytest.raises(StorageError, match="has no active storage target"):
        dlio.stage(dataset, lustre, strategy="stripe")


def test_a_placement_that_was_not_obeyed_is_found_out(
    lustre: Path, dataset: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LFS_DISOBEYS", "1")
    with pytest.raises(StorageError, match=r"was laid out as .*first=1.*, not .*first=0"):
        run(dataset, lustre, strategy="stripe", options=Options(ost_per_rank=True))
    assert not list(lustre.rglob(NAME))


def test_a_sites_own_progressive_layout_is_left_alone(lustre: Path, dataset: Manifest) -> None:
    (lustre / ".progressive").touch()
    staged = dlio.stage(dataset, lustre, strategy="stripe")
    assert "user.lfs" not in os.listxattr(staged.root / "shard-00002.bin")
    clean, _ = run(dataset, lustre / "sub", strategy="stripe", options=Options(stripe_count=2))
    assert "user.lfs" in os.listxattr(clean.root / "shard-00002.bin")


def test_what_lustre_refuses_is_said(lustre: Path, dataset: Manifest) -> None:
    with pytest.raises(StorageError, match=r"lfs setstripe .* said .*pool 'gold fsname testfs' does not exist"):
        run(dataset, lustre, strategy="stripe", options=Options(pool="gold"))
    with pytest.raises(UsageError, match="multiple of 64 KiB"):
        run(dataset, lustre, strategy="stripe", options=Options(stripe_size=65))


@pytest.mark.parametrize(
    ("script", "said"),
    [("exec sleep 60", "did not end within 0.2 s: is its server up"), ("echo lcm_layout_gen: 3", "that is not plain")],
)
def test_a_layout_that_cannot_be_read_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    monkeypatch.setattr(lustre_commands, "_COMMAND_SECONDS", 0.2)
    (tmp_path / "lfs").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "lfs").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(StorageError, match=said):
        layout_of(tmp_path / "lfs")


def test_a_damaged_begun_file_keeps_its_layout(lustre: Path, tmp_path: Path) -> None:
    source = write_dataset(tmp_path / "source", [20 * MiB, 20 * MiB])
    ready = tmp_path / "ready"

    def hang(_: int) -> None:
        ready.touch()
        time.sleep(1000)

    child = Forked(lambda: dlio.stage(source, lustre, strategy="stripe", report=hang))
    wait_for(ready)
    child.kill()
    for begun in lustre.rglob("shard-*"):
        os.truncate(begun, 0)
        os.truncate(begun, 8 * MiB)
    staged = dlio.stage(source, lustre, strategy="stripe")
    assert_staged(staged, source)
    assert {layout.count for layout in layouts(staged)} == {2}


def test_elsewhere_it_is_a_plain_copy_and_said(
    dataset: Manifest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", logger="dlio"):
        assert_staged(dlio.stage(dataset, tmp_path / "shared", strategy="stripe"), dataset)
    assert "no stripes to choose: a plain copy" in caplog.text
    with pytest.raises(StorageError, match="stripes cannot be set"):
        run(dataset, tmp_path / "other", strategy="stripe", options=Options(stripe_count=3))


@pytest.mark.parametrize("magic", [0x0BD10BD0, 0x0BD30BD0])
def test_the_attribute_that_lustre_keeps(magic: int) -> None:
    pool = b"flash".ljust(16, b"\0") if magic == 0x0BD30BD0 else b""
    objects = b"".join(struct.pack("=QQII", 0, 0, 0, index) for index in (3, 0))
    attribute = struct.pack("=IIQQIHH", magic, 1, 5, 6, MiB, 2, 0) + pool + objects
    assert parse_lov(attribute) == Layout(2, MiB, 3, "flash" if pool else "")
    for end in range(len(attribute) - 24):
        with pytest.raises(OSError, match="not a plain layout"):
            parse_lov(attribute[:end])


# --- several nodes, one folder ----------------------------------------------------------------------------------------


def test_three_nodes_share_the_work(dataset: Manifest, tmp_path: Path) -> None:
    log = tmp_path / "log"

    def stage_on(rank: int) -> None:
        staged, summary = run(dataset, tmp_path / "shared", strategy="stripe", topology=node(rank, 3))
        assert damaged_files(staged.root, dataset) == []
        with log.open("a") as file:
            file.write(f"{summary.source_bytes}\n")

    nodes = [Forked(lambda rank=rank: stage_on(rank)) for rank in range(3)]  # type: ignore[misc]
    assert [child.wait() for child in nodes] == [0, 0, 0]
    assert sum(map(int, log.read_text().split())) == dataset.num_bytes
    assert_staged(dlio.stage(dataset, tmp_path / "shared", strategy="stripe"), dataset)


def test_other_nodes_copy_the_shares_of_lost_and_absent_nodes(dataset: Manifest, tmp_path: Path) -> None:
    ready = tmp_path / "ready"

    def hang(_: int) -> None:
        ready.touch()
        time.sleep(1000)

    lost = Forked(lambda: dlio.stage(dataset, tmp_path / "shared", strategy="stripe", topology=node(1, 3), report=hang))
    wait_for(ready)
    survivor = Forked(lambda: dlio.stage(dataset, tmp_path / "shared", strategy="stripe", topology=node(0, 3)))
    time.sleep(0.2)
    lost.kill()
    assert survivor.wait() == 0
    assert_staged(dlio.stage(dataset, tmp_path / "shared", strategy="stripe"), dataset)


def test_a_failing_node_is_an_error_for_all(large_dataset: Manifest, tmp_path: Path) -> None:
    (large_dataset.root / "shard-00004.bin").write_bytes(bytes(9 * MiB))

    def stage_on(rank: int) -> None:
        with pytest.raises(DlioError, match=r"shard-00004\.bin is damaged"):
            dlio.stage(large_dataset, tmp_path / "shared", strategy="stripe", topology=node(rank, 3))

    nodes = [Forked(lambda rank=rank: stage_on(rank)) for rank in range(3)]  # type: ignore[misc]
    assert [child.wait() for child in nodes] == [0, 0, 0]
