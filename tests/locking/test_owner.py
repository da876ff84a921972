"""Owners distinguish each process from every other one, and a dead one from a living one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from dataclasses import astuple, replace
from pathlib import Path

import pytest

from dlio.io import world
from dlio.locking.owner import Owner, node_id


def test_a_reused_process_id_is_not_the_owner() -> None:
    me = Owner.current()
    assert me.is_alive() is True
    assert Owner(me.node, me.namespace, me.pid, me.started - 1).is_alive() is False
    assert Owner("elsewhere", me.namespace, me.pid, me.started).is_alive() is None
    assert Owner(me.node, "pid:[1]", me.pid, me.started).is_alive() is None


def test_a_zombie_is_dead() -> None:
    child = subprocess.Popen(["sleep", "0"])
    me = Owner.current()
    stat = Path(f"/proc/{child.pid}/stat")
    while stat.read_text().rpartition(")")[2].split()[0] != "Z":
        time.sleep(0.005)
    started = int(stat.read_text().rpartition(")")[2].split()[19])
    assert Owner(me.node, me.namespace, child.pid, started).is_alive() is False
    child.wait()


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts another /proc and becomes another user")
def test_a_process_that_proc_hides_is_not_taken_for_dead() -> None:
    me = Owner.current()
    look = f"from dlio.locking.owner import Owner; import sys; sys.exit(Owner{astuple(me)!r}.is_alive() is not None)"
    hidden = 'mount -t proc -o hidepid=2 proc /proc && exec setpriv --reuid=2001 --regid=2001 --clear-groups "$@"'
    command = ["unshare", "--mount", "sh", "-c", hidden, "sh", sys.executable, "-c", look]
    assert subprocess.run(command, check=False).returncode == 0


def test_all_processes_of_a_machine_have_one_node_id() -> None:
    code = "from dlio.locking.owner import node_id; print(node_id())"
    other = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()
    assert other == node_id()
    assert node_id().startswith(socket.gethostname())


@pytest.mark.parametrize("host", ["node7", "gpu-7.cluster.example", "two words, and@more", "größer"])
def test_an_owner_survives_as_the_name_of_a_folder(tmp_path: Path, host: str) -> None:
    owner = Owner(f"{host}/6f1c", "pid:[4026531836]", 4_194_303, 2**40)
    (tmp_path / str(owner)).mkdir()
    assert [Owner.from_text(path.name) for path in tmp_path.iterdir()] == [owner]
    assert Owner.from_text(str(Owner.current())) == Owner.current()


@pytest.mark.parametrize("text", ["", "node7.4711", "node7@6f1c@4026531836@12", "a@b@c@1@2", "a@b@1@²@2", "@b@1@1@2"])
def test_other_names_are_no_owners(text: str) -> None:
    assert Owner.from_text(text) is None


def test_a_host_name_identifies_no_process() -> None:
    """Containers with their own names may share the processes, and two machines may share a name."""
    me = Owner.current()
    boot = me.node.rpartition("/")[2]
    assert replace(me, node=f"another/{boot}").is_alive() is True
    assert replace(me, node=f"{me.host}/earlier").is_alive() is None
    assert [replace(me, node=node).is_of_earlier_boot for node in (f"{me.host}/earlier", f"another/{boot}")] == [
        True,
        False,
    ]


def test_a_process_that_frees_its_memory_is_dead(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    me = Owner.current()
    before, name, after = Path(f"/proc/{me.pid}/stat").read_text().rpartition(")")
    fields = after.split()
    fields[6] = str(int(fields[6]) | 0x4)  # PF_EXITING
    (tmp_path / "stat").write_text(f"{before}{name} {' '.join(fields)}")
    monkeypatch.setattr(world, "Path", lambda path: tmp_path / "stat" if str(path).endswith("/stat") else Path(path))
    assert world.start_time(me.pid) is None


@pytest.mark.parametrize(
    "change", [{"pid": "1"}, {"pid": 1.0}, {"pid": -1}, {"pid": 1 << 63}, {"started": True}, {"node": 1}, {"more": 1}]
)
def test_an_owner_of_another_form_is_refused(change: dict[str, object]) -> None:
    record = {"node": "here", "namespace": "pid:[1]", "pid": 1, "started": 1}
    assert Owner.from_json(record).pid == 1
    with pytest.raises(ValueError, match="expected the node"):
        Owner.from_json(record | change)
