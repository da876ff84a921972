"""`doctor` names the storage of centres, and what to do with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from dlio.io.filesystems import mounts
from dlio.look.checks.finding import State
from dlio.look.checks.mounts import _burst_buffer, mounted, of_mounts
from dlio.look.doctor import CHECKS

MOUNTINFO = r"""
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
96 22 0:50 / /tmp/pool/photos\040set rw,nosuid - fuse.daos dfuse rw,user_id=1
97 22 0:51 / /mnt/odfs/123 rw - beegfs beegfs_ondemand rw
98 22 0:52 / /tmp/ann/copper ro - fuse.cu_fuse cu_fuse ro
99 22 0:53 / /mnt/a ro - squashfs /dev/loop0 ro
100 22 0:54 / /mnt/b ro - fuse.squashfuse_ll squashfuse_ll ro
101 22 0:55 / /beegfs rw - beegfs beegfs_nodev rw
102 22 0:56 / /tmp/sshfs/copperplate rw - nfs4 host:/x rw
""".strip()


def found(environment: dict[str, str]) -> list[tuple[State, str, str]]:
    seen = of_mounts("mounts", list(mounts(MOUNTINFO)), environment)
    return [(each.state, each.found, each.advice) for each in seen]


def test_each_is_named_with_what_to_do():
    daos, beeond, copper, squashfs = found({})
    assert daos[:2] == (State.CHANGE, "DAOS at /tmp/pool/photos set, by dfuse, without its interception library")
    assert "LD_PRELOAD=/usr/lib64/libpil4dfs.so" in daos[2]
    assert beeond[1].startswith("BeeOND at /mnt/odfs/123") and "/mnt/odfs/123 --allow-shared" in beeond[1]
    assert copper[1].startswith("Copper at /tmp/ann/copper") and squashfs[1].startswith("SquashFS at /mnt/a, /mnt/b:")


@pytest.mark.parametrize("library", ["/usr/lib64/libpil4dfs.so", "/x/y.so:/opt/daos/lib64/libioil.so"])
def test_daos_with_its_library_is_good(library):
    assert found({"LD_PRELOAD": library})[0][0] is State.GOOD


def test_datawarp_is_named_by_its_variables():
    names = {"DW_JOB_PRIVATE": "/var/opt/cray/dws/1/priv", "DW_PERSISTENT_STRIPED_data": "/var/opt/cray/dws/2/all"}
    private, striped = (each[1] for each in found(names) if "DataWarp" in each[1])
    assert private.endswith("dlio stage DATASET /var/opt/cray/dws/1/priv")
    assert striped.endswith("dlio stage DATASET /var/opt/cray/dws/2/all --allow-shared")


def test_a_burst_buffer_that_stage_does_not_know(tmp_path, monkeypatch):
    monkeypatch.delenv("TMPDIR", raising=False)
    (tmp_path / "ann").mkdir()
    (finding,) = _burst_buffer("mounts", tmp_path / "ann")
    assert finding.state is State.CHANGE and f"export TMPDIR={tmp_path / 'ann'}" in finding.advice
    monkeypatch.setenv("TMPDIR", str(tmp_path / "ann"))
    assert [each.state for each in _burst_buffer("mounts", tmp_path / "ann")] == [State.GOOD]
    assert list(_burst_buffer("mounts", Path("/none"))) == []


def test_this_machine_has_an_answer():
    assert CHECKS["mounts"] is mounted and list(mounted("mounts"))
