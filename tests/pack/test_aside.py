"""Unfinished shards in OUT: those of dead workers are removed, those of any worker that may live are not."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import dlio
from dlio import sources
from dlio.errors import StorageError
from dlio.locking.owner import Owner
from dlio.pack.resume import clear_aside
from dlio.pack.write import ASIDE
from tests.helpers.images import image


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    (tmp_path / "photos" / "cat").mkdir(parents=True)
    (tmp_path / "photos" / "cat" / "1.jpg").write_bytes(image(1, "JPEG"))
    return tmp_path / "photos"


def left_by(out: Path, owner: object) -> Path:
    """Makes the folder of an unfinished shard."""
    folder = out / ASIDE / f"shard-000000.{owner}"
    folder.mkdir(parents=True)
    (folder / "shard-000000.rec").write_bytes(b"begun")
    return folder


def test_a_reused_process_id_keeps_no_leftover(tmp_path: Path) -> None:
    me = Owner.current()
    lives, dead = left_by(tmp_path, me), left_by(tmp_path, replace(me, started=me.started - 1))
    clear_aside(tmp_path)
    assert (lives.exists(), dead.exists()) == (True, False)
    clear_aside(tmp_path, of_this_process=True)
    assert not (tmp_path / ASIDE).exists()


def test_leftovers_nobody_can_judge_stay_until_the_end(tmp_path: Path, photos: Path) -> None:
    """Of another boot or container, and of a version that named a worker by its host and process id only."""
    me, out = Owner.current(), tmp_path / "out"
    dead = replace(me, started=me.started - 1)
    unknown = [replace(dead, node=f"{me.host}/other"), replace(dead, namespace="pid:[1]"), f"{me.host}.4194304"]
    folders = [left_by(out, owner) for owner in unknown]
    clear_aside(out, of_this_process=True)
    assert all(folder.exists() for folder in folders)
    dlio.pack(sources.image_folder(photos), out, format="recordio", engine="serial")
    assert not (out / ASIDE).exists()


_STOPPED = """
import signal, sys, dlio
from dlio import sources
from dlio.pack import write

def stop(*_, **__):
    print("begun", flush=True)
    signal.pause()

write.write_samples = stop
dlio.pack(sources.image_folder(sys.argv[1]), sys.argv[2], format="recordio", engine="serial")
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="makes a process-id namespace")
def test_a_worker_in_another_container_keeps_its_shard(tmp_path: Path, photos: Path) -> None:
    """Its host has the same name, and its process id is nobody's on this side."""
    out = tmp_path / "out"
    numbered = 'echo 4100000 >/proc/sys/kernel/ns_last_pid && { "$@"; exit; }'
    container = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", numbered, "sh"]
    command = [*container, sys.executable, "-c", _STOPPED, str(photos), str(out)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None and other.stdout.readline() == "begun\n"
            begun = list((out / ASIDE).glob("shard-*"))
            with pytest.raises(StorageError, match=r"another dlio pack into .* is under way, by process 4100001 on"):
                dlio.pack(sources.image_folder(photos), out, format="recordio", engine="serial")
            assert len(begun) == 1 and begun[0].exists()
        finally:
            other.kill()
