"""Files that another user of the node plants among leases keep nobody's copy, and hide no lease."""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

import pytest

import dlio
from dlio.dataset.manifest import Manifest
from dlio.io.open_folder import OpenFolder
from dlio.locking.owner import Owner
from dlio.stage.copies import lease as lease_module
from dlio.stage.copies.lease import leases
from dlio.stage.copies.node_cache import copies, is_in_use
from dlio.stage.upkeep.clean import clean
from tests.helpers.staging import folder_of
from tests.helpers.users import ALICE, BOB, as_user

pytestmark = [
    pytest.mark.usefixtures("job_7"),
    pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users"),
    pytest.mark.timeout(60),
]


def junk(folder: Path, copy: str) -> None:
    """Fills a folder of leases with entries that are not leases."""
    here = Owner.current()
    holder = {"node": here.node, "namespace": here.namespace, "pid": 1, "started": 1}
    records: list[object] = [
        {"job": "9" * 400, "holder": holder | {"pid": "1"}},
        {"job": "9", "holder": holder | {"node": 1}},
        {"job": 9, "holder": holder},
        {"job": "9", "holder": None},
        {"job": "", "holder": holder | {"pid": 10**400}},
        {"job": "", "holder": holder | {"pid": True}},
        [],
        None,
    ]
    texts = [json.dumps(record) for record in records]
    texts += ["[" * 200_000, "[" * 15_000, '{"job": NaN}', '{"renewed": 1' + "0" * 400 + "}", "\udcff", "", "{"]
    for number, text in enumerate(texts):
        (folder / f"{copy}@text{number}").write_bytes(text.encode(errors="surrogateescape"))
    os.mkfifo(folder / f"{copy}@fifo")
    os.mkfifo(folder / copy)
    (folder / f"{copy}@folder").mkdir()
    for name in ("a", "b", "c"):
        (folder / f"{copy}@{name}").symlink_to(".")
    os.truncate(os.open(folder / f"{copy}@sparse", os.O_CREAT | os.O_RDWR), 20 << 30)
    os.chdir(folder)  # a socket's path is short
    socket.socket(socket.AF_UNIX).bind(f"{copy}@socket")


@pytest.mark.parametrize("owner", [0, ALICE])
def test_files_that_are_not_leases_are_ignored(dest: Path, dataset: Manifest, owner: int) -> None:
    def stage() -> None:
        dlio.stage(dataset, dest)
        clean(dest, keep=True)

    def end() -> None:
        assert not is_in_use(copies(dest)[0])
        assert [path.name for path in clean(dest)] == [dataset.content_id]

    assert as_user(owner, stage) == 0
    assert as_user(BOB, lambda: junk(dest / "dlio" / ".leases", dataset.content_id)) == 0
    assert as_user(owner, end) == 0
    assert not (dest / "dlio" / dataset.content_id).exists()


def test_clean_reports_once_files_that_are_not_leases(
    dest: Path, dataset: Manifest, caplog: pytest.LogCaptureFixture
) -> None:
    dlio.stage(dataset, dest)
    assert as_user(BOB, lambda: junk(dest / "dlio" / ".leases", dataset.content_id)) == 0
    clean(dest)
    assert [message for message in caplog.messages if "not leases" in message] == [
        f"{dest}/dlio/.leases holds files that are not leases: they are ignored, and kept"
    ]


def test_a_lease_naming_another_users_process_ends_after_a_week(dest: Path, dataset: Manifest) -> None:
    """Else a lease that names process 1 keeps the copy forever."""
    staged = dlio.stage(dataset, dest)
    clean(dest, keep=True)
    first = Owner.current()
    started = int(Path("/proc/1/stat").read_text().rpartition(")")[2].split()[19])
    holder = {"node": first.node, "namespace": first.namespace, "pid": 1, "started": started}

    def pin() -> None:
        name = f"{dataset.content_id}@0123456789abcdef"
        (dest / "dlio" / ".leases" / name).write_text(json.dumps({"job": "", "holder": holder}))

    assert as_user(BOB, pin) == 0
    (lease,) = leases(folder_of(staged))
    assert (lease.holder.is_alive(), lease.holder.is_alive(BOB)) == (True, None)


def test_one_users_many_leases_hide_nobodys(dest: Path, dataset: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "_MAX_READ", 100)
    staged = dlio.stage(dataset, dest)
    valid = (dest / "dlio" / ".leases").iterdir().__next__().read_text()

    def flood() -> None:
        for number in range(300):
            (dest / "dlio" / ".leases" / f"{dataset.content_id}@{number:016x}").write_text(valid)

    assert as_user(BOB, flood) == 0
    assert 0 in {lease.user for lease in leases(folder_of(staged))}


@pytest.mark.parametrize("forgotten_after", [0.0, 7 * 86400.0])
def test_later_leases_of_a_user_hide_none_in_force(
    dest: Path, dataset: Manifest, monkeypatch: pytest.MonkeyPatch, forgotten_after: float
) -> None:
    """Recent ones that are too many to be read count as in force; old ones are read."""
    monkeypatch.setattr(lease_module, "_MAX_READ", 100)
    monkeypatch.setattr(lease_module, "_FORGOTTEN_SECONDS", forgotten_after)
    monkeypatch.delenv("SLURM_JOB_ID")
    staged = dlio.stage(dataset, dest)
    folder = dest / "dlio" / ".leases"
    record = json.loads(next(folder.iterdir()).read_text())
    record["holder"]["started"] += 1  # of a process that has ended
    for number in range(300):
        (folder / f"{dataset.content_id}@{number:016x}").write_text(json.dumps(record))
    assert is_in_use(folder_of(staged))


def test_many_pipes_are_not_leases(dest: Path, dataset: Manifest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lease_module, "_MAX_READ", 100)

    def flood() -> None:
        for number in range(300):
            os.mkfifo(dest / "dlio" / ".leases" / f"{dataset.content_id}@{number:016x}")

    dlio.stage(dataset, dest)
    assert as_user(BOB, flood) == 0
    assert [path.name for path in clean(dest)] == [dataset.content_id]


def test_a_mount_of_another_user_does_not_hide_leases(
    dest: Path, dataset: Manifest, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged = dlio.stage(dataset, dest)
    (staged.root.parent / ".leases" / f"{dataset.content_id}@00").touch()
    look = OpenFolder.look

    def shut_out(opened: OpenFolder, name: str) -> os.stat_result | None:
        if name.endswith("@00"):
            raise PermissionError(13, "as FUSE answers all but its owner")
        return look(opened, name)

    monkeypatch.setattr(OpenFolder, "look", shut_out)
    assert is_in_use(folder_of(staged))
