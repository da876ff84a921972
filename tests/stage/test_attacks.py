"""What another user of the node plants where copies lie: it is not followed, not waited for, not believed."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import dlio
from dlio import cli
from dlio.errors import ManifestError, StorageError
from dlio.manifest import NAME, Manifest
from dlio.open_folder import OpenFolder
from dlio.owner import Owner
from dlio.stage import destination, lease
from dlio.stage.as_owner import as_owner
from dlio.stage.cache import clean, copies, is_in_use
from dlio.stage.folder import StagedFolder
from dlio.stage.lease import leases
from dlio.stage.resolve import resolve
from dlio.topology import Topology

from .conftest import assert_staged, folder_of, write_dataset
from .users import ALICE, BOB, as_user, open_to_all

pytestmark = [
    pytest.mark.usefixtures("job_7"),
    pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users"),
    pytest.mark.timeout(60),
]
COPY = "0123456789abcdef" * 2


@pytest.fixture
def dest(tmp_path: Path) -> Path:
    """A folder as open as /tmp."""
    return open_to_all(tmp_path)


@pytest.fixture
def thesis(tmp_path: Path) -> Path:
    """Years of work, in a folder of Alice's that all may read."""
    folder = tmp_path / "home"
    (folder / "1").mkdir(parents=True)
    for path in (folder / "thesis.tex", folder / "1" / "chapter", folder / "2"):
        path.write_text("years of work")
    for path in (folder, *folder.rglob("*")):
        os.chown(path, ALICE, ALICE)
    return folder


def is_whole(thesis: Path) -> bool:
    return sorted(path.name for path in thesis.rglob("*")) == ["1", "2", "chapter", "thesis.tex"]


def marked(folder: Path) -> Path:
    """Makes a folder that bears dlio's marker."""
    (folder / ".dlio").mkdir(parents=True)
    (folder / ".dlio" / "copy.json").write_text(json.dumps({"copy": folder.name, "source": "/data"}))
    return folder


def link_in_the_claims(cache: Path, target: Path) -> None:
    marked(cache / COPY)
    (cache / ".claims" / COPY).mkdir(parents=True)
    (cache / ".claims" / COPY / "share").symlink_to(target)


def link_in_place_of_the_claims(cache: Path, target: Path) -> None:
    marked(cache / COPY)
    (cache / ".claims").mkdir()
    (cache / ".claims" / COPY).symlink_to(target)


def link_in_place_of_all_claims(cache: Path, target: Path) -> None:
    marked(cache / COPY)
    (cache / ".claims").symlink_to(target.parent)


def link_in_place_of_the_leases(cache: Path, target: Path) -> None:
    marked(cache / COPY)
    (cache / ".leases").symlink_to(target)


def link_in_place_of_the_copy(cache: Path, target: Path) -> None:
    cache.mkdir(exist_ok=True)
    (cache / COPY).symlink_to(target)


def link_in_the_copy(cache: Path, target: Path) -> None:
    (marked(cache / COPY) / "shards").symlink_to(target)
    (cache / COPY / ".dlio" / "aside").symlink_to(target)


def link_in_place_of_the_marker(cache: Path, target: Path) -> None:
    (cache / COPY).mkdir(parents=True)
    (cache / COPY / ".dlio").symlink_to(target)


def link_in_place_of_the_cache(cache: Path, target: Path) -> None:
    cache.symlink_to(target)


def link_to_be_swept(cache: Path, target: Path) -> None:
    cache.mkdir(exist_ok=True)
    for prefix in (".leaving-", ".removed-"):
        (cache / f"{prefix}0123456789abcdef-{COPY}").symlink_to(target)


LINKS = [value for name, value in list(globals().items()) if name.startswith("link_")]


@pytest.mark.parametrize("plant", LINKS, ids=lambda plant: plant.__name__)
@pytest.mark.parametrize("below", ["dlio", f"dlio-u{BOB}/dlio"])
@pytest.mark.parametrize("cleaner", [0, ALICE])
def test_clean_follows_no_link(
    dest: Path, thesis: Path, plant: Callable[[Path, Path], None], below: str, cleaner: int
) -> None:
    def attack() -> None:
        cache = dest / below
        cache.parent.mkdir(exist_ok=True)
        plant(cache, thesis)

    assert as_user(BOB, attack) == 0
    assert as_user(cleaner, lambda: clean(dest)) == 0
    assert is_whole(thesis)


def test_a_link_in_place_of_the_folder_of_a_user_is_not_followed(dest: Path, thesis: Path, dataset: Manifest) -> None:
    """Bob's DEST/dlio-u<bob> leads to where Alice stages."""
    assert as_user(ALICE, lambda: dlio.stage(dataset, thesis / "1")) == 0
    assert as_user(ALICE, lambda: clean(thesis / "1", keep=True)) == 0
    assert as_user(BOB, lambda: (dest / f"dlio-u{BOB}").symlink_to(thesis / "1")) == 0
    assert clean(dest) == []
    assert_staged(Manifest.load(thesis / "1" / "dlio" / dataset.content_id), dataset)


@pytest.mark.parametrize("plant", LINKS, ids=lambda plant: plant.__name__)
def test_eviction_follows_no_link(
    small_disk: Callable[[str], Path], tmp_path: Path, thesis: Path, plant: Callable[[Path, Path], None]
) -> None:
    open_to_all(tmp_path)
    disk = small_disk("size=25m,mode=1777")
    first, second = (write_dataset(tmp_path / f"source{seed}", [14 << 20], seed=seed) for seed in range(2))

    def stage() -> None:
        assert_staged(dlio.stage(first, disk), first)
        clean(disk, keep=True)
        assert_staged(dlio.stage(second, disk), second)

    assert as_user(BOB, lambda: plant(disk / "dlio", thesis)) == 0
    assert as_user(ALICE, stage) == 0
    assert is_whole(thesis)


def junk(folder: Path, copy: str) -> None:
    """Fills a folder of leases with all that is none."""
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
def test_what_is_no_lease_does_not_count(dest: Path, dataset: Manifest, owner: int) -> None:
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


def test_clean_says_once_that_there_are_files_that_are_no_leases(
    dest: Path, dataset: Manifest, caplog: pytest.LogCaptureFixture
) -> None:
    dlio.stage(dataset, dest)
    assert as_user(BOB, lambda: junk(dest / "dlio" / ".leases", dataset.content_id)) == 0
    clean(dest)
    assert [message for message in caplog.messages if "no leases" in message] == [
        f"{dest}/dlio/.leases holds files that are no leases: they do not count, and stay"
    ]


def test_a_lease_in_the_name_of_a_process_of_another_user_ends_after_a_week(dest: Path, dataset: Manifest) -> None:
    """Else whoever names process 1 keeps the copy for ever."""
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


def test_leases_of_others_hide_nobodys(dest: Path, dataset: Manifest) -> None:
    staged = dlio.stage(dataset, dest)
    valid = (dest / "dlio" / ".leases").iterdir().__next__().read_text()

    def flood() -> None:
        for number in range(3000):
            (dest / "dlio" / ".leases" / f"{dataset.content_id}@{number:016x}").write_text(valid)

    assert as_user(BOB, flood) == 0
    assert 0 in {lease.user for lease in leases(folder_of(staged))}


@pytest.mark.parametrize("forgotten_after", [0.0, 7 * 86400.0])
def test_later_leases_of_a_user_hide_none_in_force(
    dest: Path, dataset: Manifest, monkeypatch: pytest.MonkeyPatch, forgotten_after: float
) -> None:
    """Young ones that are too many to be read count as in force; old ones are read."""
    monkeypatch.setattr(lease, "_FORGOTTEN_SECONDS", forgotten_after)
    monkeypatch.delenv("SLURM_JOB_ID")
    staged = dlio.stage(dataset, dest)
    folder = dest / "dlio" / ".leases"
    record = json.loads(next(folder.iterdir()).read_text())
    record["holder"]["started"] += 1  # of a process that is gone
    for number in range(1500):
        (folder / f"{dataset.content_id}@{number:016x}").write_text(json.dumps(record))
    assert is_in_use(folder_of(staged))


def test_pipes_and_large_files_of_any_number_are_no_leases(dest: Path, dataset: Manifest) -> None:
    def flood() -> None:
        for number in range(1500):
            os.mkfifo(dest / "dlio" / ".leases" / f"{dataset.content_id}@{number:016x}")

    dlio.stage(dataset, dest)
    assert as_user(BOB, flood) == 0
    assert [path.name for path in clean(dest)] == [dataset.content_id]


def test_a_copy_that_another_user_makes_again_and_again_does_not_stop_a_stage(
    small_disk: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = small_disk("size=25m,mode=1777")
    (disk / "dlio").mkdir(mode=0o755)
    given_to_bob(marked(disk / "dlio" / COPY))
    remove = StagedFolder.remove

    def made_anew(folder: StagedFolder) -> None:
        remove(folder)
        if not (disk / "dlio" / COPY).exists():
            given_to_bob(marked(disk / "dlio" / COPY))

    monkeypatch.setattr(StagedFolder, "remove", made_anew)
    with pytest.raises(StorageError, match="are needed"):
        dlio.stage(write_dataset(tmp_path / "source", [30 << 20]), disk)


def test_a_file_system_that_a_user_serves_is_no_place_for_copies(
    dest: Path, dataset: Manifest, tmp_path: Path, slow_source: Callable[..., Path]
) -> None:
    """Where /etc/fuse.conf lets others in, Bob's own process may say that DEST/dlio is root's."""
    (tmp_path / "of-bob").mkdir()
    (dest / "dlio").mkdir()
    subprocess.run(["mount", "--bind", slow_source(tmp_path / "of-bob"), dest / "dlio"], check=True)
    try:
        assert dlio.stage(dataset, dest).root.parents[1] == dest / "dlio-u0"
    finally:
        subprocess.run(["umount", dest / "dlio"], check=True)


def test_a_copy_of_another_user_chooses_nobodys_folder(
    dest: Path, dataset: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = [tmp_path / "fast", dest]
    folders[0].mkdir()
    monkeypatch.setattr(destination, "local_folders", lambda: [("announced", each) for each in folders])
    (dest / "dlio").mkdir(mode=0o755)
    whole_copy(StagedFolder(dest, dataset.content_id), dest, dataset)
    assert destination.choose_dest(dataset, Topology(0, 1))[0] == folders[0]


def claims_link(folder: StagedFolder, target: Path, _: Manifest) -> None:
    folder.claims.path.symlink_to(target)
    os.lchown(folder.claims.path, BOB, BOB)


def copy_with_a_link(folder: StagedFolder, target: Path, _: Manifest) -> None:
    marked(folder.path)
    (folder.path / ".dlio" / "aside").symlink_to(target)
    given_to_bob(folder.path)


def copy_with_a_pipe(folder: StagedFolder, _target: Path, _: Manifest) -> None:
    (folder.path / ".dlio").mkdir(parents=True)
    os.mkfifo(folder.path / ".dlio" / "copy.json")
    given_to_bob(folder.path)


def whole_copy(folder: StagedFolder, _target: Path, source: Manifest) -> None:
    marked(folder.path)
    for path in source.root.iterdir():
        (folder.path / path.name).write_bytes(path.read_bytes())
    given_to_bob(folder.path)


def given_to_bob(folder: Path) -> None:
    for path in (folder, *folder.rglob("*")):
        os.lchown(path, BOB, BOB)


@pytest.mark.parametrize("plant", [claims_link, copy_with_a_link, copy_with_a_pipe, whole_copy])
def test_what_is_planted_between_a_look_and_its_use_is_refused(
    dest: Path,
    thesis: Path,
    dataset: Manifest,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    plant: Callable[[StagedFolder, Path, Manifest], None],
) -> None:
    """Root's lease tells Bob that a stage has looked and will soon begin."""
    dlio.stage(write_dataset(tmp_path / "earlier", [10], seed=3), dest)
    take = lease.take

    def planting(folder: StagedFolder) -> None:
        take(folder)
        plant(folder, thesis, dataset)

    monkeypatch.setattr(lease, "take", planting)
    with pytest.raises(StorageError):
        dlio.stage(dataset, dest)
    assert is_whole(thesis)
    monkeypatch.setattr(lease, "take", take)
    staged = dlio.stage(dataset, dest)
    assert_staged(staged, dataset)
    assert staged.root.parents[1] == dest / "dlio-u0"


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


def test_a_source_behind_links_is_as_private_as_what_they_lead_to(
    dest: Path, dataset: Manifest, tmp_path: Path
) -> None:
    dataset.root.chmod(0o700)
    (tmp_path / "links").mkdir()
    for path in dataset.root.iterdir():
        (tmp_path / "links" / path.name).symlink_to(path)
    staged = dlio.stage(tmp_path / "links", dest).root
    assert {stat.S_IMODE(path.stat().st_mode) for path in staged.glob("shard-*")} == {0o600}


def test_a_pipe_in_place_of_a_shard_is_not_waited_for(dest: Path, dataset: Manifest) -> None:
    (dataset.root / "shard-00003.bin").unlink()
    os.mkfifo(dataset.root / "shard-00003.bin")
    with pytest.raises(StorageError, match=r"shard-00003.bin has 0 bytes"):
        dlio.stage(dataset, dest)


def test_a_folder_that_another_user_shuts_does_not_stop_clean(dest: Path, dataset: Manifest) -> None:
    def shut() -> None:
        (dest / "dlio").mkdir(mode=0o700)

    def day() -> None:
        staged = dlio.stage(dataset, dest).root
        assert clean(dest) == [staged]

    assert as_user(BOB, shut) == as_user(ALICE, day) == 0


def test_a_process_that_its_user_stops_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(StorageError, match="read nothing for 2 s"):
        as_owner(BOB, lambda: os.kill(os.getpid(), signal.SIGSTOP), 2.0)


def test_a_copy_open_to_all_with_anothers_marker_stops_nobody(dest: Path, dataset: Manifest) -> None:
    (dest / "dlio").mkdir(mode=0o755)
    (dest / "dlio" / dataset.content_id).mkdir()
    (dest / "dlio" / dataset.content_id).chmod(0o777)
    assert as_user(BOB, lambda: marked(dest / "dlio" / dataset.content_id)) == 0
    staged = dlio.stage(dataset, dest)
    assert staged.root.parents[1] == dest / "dlio-u0"
    assert clean(dest) == [staged.root]
    assert (dest / "dlio" / dataset.content_id / ".dlio" / "copy.json").exists()


def test_files_of_others_in_a_copy_are_left_and_stop_nobody(
    dest: Path, dataset: Manifest, caplog: pytest.LogCaptureFixture
) -> None:
    staged = dlio.stage(dataset, dest)
    staged.root.chmod(0o777)
    assert as_user(BOB, lambda: (staged.root / "planted").write_text("mine")) == 0
    assert clean(dest) == []
    assert "holds another user's files, such as 'planted'" in caplog.text
    assert [path.read_text() for path in dest.rglob("planted")] == ["mine"]


def test_a_copy_with_another_manifest_is_not_read(
    dest: Path, dataset: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    other = write_dataset(tmp_path / "other", [100], seed=9)
    monkeypatch.setenv("DLIO_STAGED", str(dest))
    poisoned = dlio.stage(other, dest).root.rename(dest / "dlio" / dataset.content_id)
    assert resolve(dataset.root) == dataset.root
    assert f"it holds another data set, {other.content_id}" in caplog.text
    with pytest.raises(ManifestError, match="holds another data set"):
        resolve(poisoned)
    assert cli.main(["stage", str(dataset.root), str(dest)]) == 4, "it is no place to copy to"
    clean(dest)
    assert_staged(dlio.stage(dataset, dest), dataset)
    assert resolve(dataset.root) == poisoned


def test_a_damaged_manifest_of_a_copy_is_left_out(
    dest: Path, dataset: Manifest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("DLIO_STAGED", str(dest))
    (dlio.stage(dataset, dest).root / NAME).write_text("{")
    assert resolve(dataset.root) == dataset.root
    assert "a staged copy is left out" in caplog.text


def test_the_folders_that_all_may_write_are_sticky_and_keep_the_group(dest: Path, dataset: Manifest) -> None:
    os.chown(dest, 0, BOB)
    dest.chmod(0o3777)
    dlio.stage(dataset, dest)
    for folder in (dest / "dlio", dest / "dlio" / ".claims", dest / "dlio" / ".leases"):
        assert (stat.S_IMODE(folder.stat().st_mode), folder.stat().st_gid) == (0o3777, BOB)


def test_a_cache_of_an_older_version_is_made_sticky(dest: Path, dataset: Manifest) -> None:
    for name in ("dlio", "dlio/.claims"):
        (dest / name).mkdir()
        (dest / name).chmod(0o777)
    assert dlio.stage(dataset, dest).root.parents[1] == dest / "dlio-u0", "what lies there may have been changed"
