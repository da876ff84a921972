"""`verify --repair`: what is damaged in a staged copy comes anew from its source, whole or not at all."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import dlio
from dlio import cli
from dlio.dataset.manifest import NAME, Manifest
from dlio.dataset.schema import Schema
from dlio.errors import StorageError, UsageError
from dlio.locking.claim import claimed
from dlio.stage.cache import repair as mending
from dlio.stage.cache.node_cache import is_being_filled, remove_unused
from dlio.stage.cache.repair import manifest_of, origin_of, repair, staged_copy
from dlio.stage.planning.placement import partitioned
from dlio.stage.run import run
from dlio.stage.transfer.copy import Tally
from dlio.stage.transfer.source import MountedFolder
from tests.helpers.forked import Forked, wait_for
from tests.helpers.staging import MiB, assert_staged, damaged_files, flip, folder_of, node, write_dataset
from tests.helpers.users import as_user, open_to_all

pytestmark = pytest.mark.usefixtures("job_7")
Verify = Callable[..., tuple[int, dict[str, object], str]]


@pytest.fixture
def packed(photos: Path, tmp_path: Path) -> Manifest:
    """Photos in four TFRecord shards, each with an index and a table of samples."""
    return dlio.pack(dlio.sources.image_folder(photos), tmp_path / "packed", num_shards=4, engine="serial")


@pytest.fixture
def verify(capsys: pytest.CaptureFixture[str]) -> Verify:
    """Runs `dlio verify --json` here; returns its exit code, its report and what it says on stderr."""

    def verify(*words: object) -> tuple[int, dict[str, object], str]:
        code = cli.main(["verify", *map(str, words), "--json"])
        out, err = capsys.readouterr()
        return code, json.loads(out or "{}"), err

    return verify


DAMAGES: dict[str, Callable[[Path], object]] = {
    "a flipped bit": flip,
    "cut off": lambda path: os.truncate(path, 90),
    "too long": lambda path: path.open("ab").write(b"more"),
    "missing": Path.unlink,
    "emptied": lambda path: path.write_bytes(b""),
    "a folder's link": lambda path: (path.unlink(), path.symlink_to("/")),
    "a FIFO": lambda path: (path.unlink(), os.mkfifo(path)),
}


def assert_whole(staged: Manifest, source: Manifest) -> None:
    """The copy holds what the source holds, and nothing but dlio's own files besides."""
    assert_staged(staged, source)
    assert not is_being_filled(folder_of(staged))


@pytest.mark.filterwarnings("ignore:unclosed file")  # the damage done by `DAMAGES`
@pytest.mark.parametrize("name", ["shard-000001.tfrecord", "shard-000002.samples.npz", "shard-000003.idx"])
@pytest.mark.parametrize("damage", DAMAGES)
def test_what_is_damaged_is_brought_anew(
    packed: Manifest, tmp_path: Path, verify: Verify, name: str, damage: str
) -> None:
    staged = dlio.stage(packed, tmp_path / "local")
    DAMAGES[damage](staged.root / name)
    code, report, err = verify(staged.root, "--repair")
    assert (code, report["repaired"], report["not_repaired"]) == (0, [name], {})
    assert name in err
    assert_whole(staged, packed)
    assert verify(staged.root)[0] == 0


def test_of_a_whole_copy_nothing_is_written_and_its_source_is_not_read(
    packed: Manifest, tmp_path: Path, verify: Verify
) -> None:
    staged = dlio.stage(packed, tmp_path / "local")
    shutil.rmtree(packed.root)
    before = {path: path.stat().st_mtime_ns for path in staged.root.rglob("*")}
    code, report, err = verify(staged.root, "--repair")
    assert (code, report["damaged"], report["repaired"], err) == (0, {}, [], "")
    assert {path: path.stat().st_mtime_ns for path in staged.root.rglob("*")} == before


@pytest.mark.parametrize(
    ("old", "new"), [(b'"dog"', b'"cow"'), (b'"dlio":', b'"dlio";'), (b"shard-000002", b"shard-\xff0002")]
)
def test_a_damaged_manifest_is_named_and_brought_anew(
    packed: Manifest, tmp_path: Path, verify: Verify, old: bytes, new: bytes
) -> None:
    """Even where it can still be read: its content id is the folder's name."""
    staged = dlio.stage(packed, tmp_path / "local")
    path = staged.root / NAME
    path.write_bytes(path.read_bytes().replace(old, new))
    flip(staged.root / "shard-000001.tfrecord")
    code, _, err = verify(staged.root)
    assert code in (1, 3)
    assert str(path) in err
    code, report, _ = verify(staged.root, "--repair")
    assert (code, report["repaired"]) == (0, [NAME, "shard-000001.tfrecord"])
    assert_whole(staged, packed)


def test_what_is_damaged_in_the_source_too_is_named_and_the_rest_is_mended(
    packed: Manifest, tmp_path: Path, verify: Verify
) -> None:
    staged = dlio.stage(packed, tmp_path / "local")
    for name in ("shard-000000.tfrecord", "shard-000001.tfrecord", "shard-000002.idx"):
        flip(staged.root / name)
    flip(packed.root / "shard-000001.tfrecord", 300)
    (packed.root / "shard-000002.idx").unlink()
    worse = (staged.root / "shard-000001.tfrecord").read_bytes()
    code, report, err = verify(staged.root, "--repair")
    assert (code, report["repaired"]) == (1, ["shard-000000.tfrecord"])
    failed = report["not_repaired"]
    assert isinstance(failed, dict)
    assert f"{packed.root}/shard-000001.tfrecord is damaged" in failed["shard-000001.tfrecord"]
    assert f"cannot read {packed.root}/shard-000002.idx" in failed["shard-000002.idx"]
    assert "not repaired: " in err
    assert (staged.root / "shard-000001.tfrecord").read_bytes() == worse
    assert not list((staged.root / ".dlio").glob("aside*"))


def test_a_source_that_is_gone_or_changed_is_refused_and_another_can_be_named(
    packed: Manifest, tmp_path: Path, verify: Verify
) -> None:
    staged = dlio.stage(packed, tmp_path / "local")
    flip(staged.root / "shard-000001.tfrecord")
    moved = packed.root.rename(tmp_path / "moved")
    code, _, err = verify(staged.root, "--repair")
    assert code == 1
    assert "name its source with --from" in err
    schema = Schema(packed.schema.fields, ("cat", "cow", "owl"), 0)
    packed.root.mkdir()
    replace(packed, schema=schema).save(packed.root)
    code, _, err = verify(staged.root, "--repair")
    assert code == 1
    assert "holds another data set" in err
    assert "the class names differs" in err
    assert verify(staged.root)[0] == 1
    assert verify(staged.root, "--repair", "--from", moved)[0] == 0
    assert_whole(staged, packed)


def test_a_source_named_by_a_relative_path_is_found_from_elsewhere(
    packed: Manifest, tmp_path: Path, verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    staged = dlio.stage("packed", tmp_path / "local")
    flip(staged.root / "shard-000001.tfrecord")
    monkeypatch.chdir("/")
    assert verify(staged.root, "--repair")[0] == 0


@pytest.mark.parametrize("marker", ["{}", '{"source": "packed"}', "[" * 100_000, '{"source": 7}', "no json"])
def test_a_copy_that_does_not_say_where_it_is_from(
    packed: Manifest, tmp_path: Path, verify: Verify, marker: str
) -> None:
    staged = dlio.stage(packed, tmp_path / "local")
    flip(staged.root / "shard-000001.tfrecord")
    folder_of(staged).marker.write_text(marker)
    code, _, err = verify(staged.root, "--repair")
    assert code == 1
    assert "name the source with --from" in err
    assert verify(staged.root, "--repair", "--from", packed.root)[0] == 0


def test_only_a_complete_staged_copy_can_be_mended(packed: Manifest, tmp_path: Path, verify: Verify) -> None:
    code, _, err = verify(packed.root, "--repair")
    assert code == 2
    assert "is no staged copy" in err
    staged = dlio.stage(packed, tmp_path / "local")
    (staged.root / NAME).unlink()
    code, _, err = verify(staged.root, "--repair")
    assert code == 2
    assert "run dlio stage once more" in err
    assert verify(staged.root, "--from", packed.root)[0] == 2
    assert verify()[0] == 2


def test_a_part_is_mended_and_no_more_than_the_part(packed: Manifest, tmp_path: Path, verify: Verify) -> None:
    staged = run(packed, tmp_path / "local", strategy="partition", topology=node(1, 2))[0]
    here = [file.name for shard in staged.shards_here for file in shard.files]
    flip(staged.root / here[0])
    (staged.root / NAME).write_text("no manifest")
    code, report, _ = verify(staged.root, "--repair")
    assert (code, report["repaired"]) == (0, [NAME, here[0]])
    mended = Manifest.load(staged.root)
    assert (mended, mended.node) == (partitioned(packed, 2), 1)
    assert {path.name for path in staged.root.iterdir() if path.is_file()} == {*here, NAME}
    assert damaged_files(staged.root, packed) == []


def test_a_folder_within_the_copy_that_has_become_a_link_is_not_followed(tmp_path: Path) -> None:
    source = write_dataset(tmp_path / "source", [5000, 700], stem="deep/below/part")
    staged = dlio.stage(source, tmp_path / "local")
    (staged.root / "deep" / "below").rename(tmp_path / "elsewhere")
    (staged.root / "deep" / "below").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "elsewhere" / "part-00001.bin").write_text("thesis")
    names = [file.name for shard in source.shards for file in shard.files]
    done = repair(folder_of(staged), source, names, MountedFolder(source))
    assert done.repaired == []
    assert sorted(done.not_repaired) == names
    assert (tmp_path / "elsewhere" / "part-00001.bin").read_text() == "thesis"
    (staged.root / "deep" / "below").unlink()
    assert repair(folder_of(staged), source, names, MountedFolder(source)).repaired == names
    assert_whole(staged, source)


@pytest.mark.filterwarnings("ignore:unclosed file")
@pytest.mark.parametrize("damage", DAMAGES)
def test_a_file_of_any_kind_is_replaced_and_not_followed(dataset: Manifest, tmp_path: Path, damage: str) -> None:
    staged, file = dlio.stage(dataset, tmp_path / "local"), dataset.shards[4].files[0]
    DAMAGES[damage](staged.root / file.name)
    done = repair(folder_of(staged), dataset, [file.name], origin_of(folder_of(staged)))
    assert (done.repaired, done.not_repaired) == ([file.name], {})
    assert_whole(staged, dataset)


def test_a_file_that_is_not_of_the_owner_is_replaced(dataset: Manifest, tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("gives a file to another user")
    staged, name = dlio.stage(dataset, tmp_path / "local"), dataset.shards[4].files[0].name
    os.chown(staged.root / name, 2001, 2001)
    assert repair(folder_of(staged), dataset, [name], MountedFolder(dataset)).repaired == [name]
    assert (staged.root / name).stat().st_uid == 0


def test_a_reader_keeps_the_file_that_it_has_open(dataset: Manifest, tmp_path: Path) -> None:
    staged, name = dlio.stage(dataset, tmp_path / "local"), dataset.shards[4].files[0].name
    flip(staged.root / name)
    before = (staged.root / name).read_bytes()
    with (staged.root / name).open("rb") as reader:
        first = reader.read(MiB)
        assert repair(folder_of(staged), dataset, [name], MountedFolder(dataset)).repaired == [name]
        assert first + reader.read() == before
    assert damaged_files(staged.root, dataset) == []


def damaged_copy(dataset: Manifest, local: Path) -> tuple[Manifest, str, bytes]:
    """Returns a copy, the name of its damaged file, and the bytes of that."""
    staged, name = dlio.stage(dataset, local), dataset.shards[4].files[0].name
    flip(staged.root / name)
    return staged, name, (staged.root / name).read_bytes()


def hang_after_the_first_block(ready: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a repair stop in the middle of a file, until it is killed or interrupted."""

    def report(_: int) -> None:
        ready.touch()
        time.sleep(1000)

    monkeypatch.setattr(mending, "Tally", partial(Tally, report))


@pytest.mark.parametrize("with_signal", [signal.SIGKILL, signal.SIGINT])
def test_an_end_in_the_middle_leaves_nothing_half_written(
    dataset: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_signal: signal.Signals
) -> None:
    staged, name, before = damaged_copy(dataset, tmp_path / "local")

    def half() -> None:
        def report(_: int) -> None:
            os.kill(os.getpid(), with_signal)
            threading.Event().wait(2)  # the interrupt reaches the main thread

        monkeypatch.setattr(mending, "Tally", partial(Tally, report))
        repair(folder_of(staged), dataset, [name], MountedFolder(dataset))

    assert Forked(half).wait() != 0
    assert (staged.root / name).read_bytes() == before
    assert list(folder_of(staged).unfinished.rglob("*.bin"))
    assert not is_being_filled(folder_of(staged))
    assert repair(folder_of(staged), dataset, [name], MountedFolder(dataset)).repaired == [name]
    assert_whole(staged, dataset)


def test_of_two_repairs_one_is_refused_and_nobody_evicts_the_copy(
    dataset: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    staged, name, before = damaged_copy(dataset, tmp_path / "local")
    dlio.clean(tmp_path / "local", keep=True)
    hang_after_the_first_block(tmp_path / "ready", monkeypatch)
    other = Forked(lambda: repair(folder_of(staged), dataset, [name], MountedFolder(dataset)))
    wait_for(tmp_path / "ready")
    with pytest.raises(StorageError, match="by another process"):
        repair(folder_of(staged), dataset, [name], MountedFolder(dataset))
    assert not remove_unused(folder_of(staged))
    assert (staged.root / name).read_bytes() == before
    other.kill()
    monkeypatch.undo()
    assert repair(folder_of(staged), dataset, [name], MountedFolder(dataset)).repaired == [name]


def test_what_another_process_has_mended_meanwhile_is_not_brought_again(dataset: Manifest, tmp_path: Path) -> None:
    staged, name, _ = damaged_copy(dataset, tmp_path / "local")
    assert repair(folder_of(staged), dataset, [name], MountedFolder(dataset)).repaired == [name]
    number = (staged.root / name).stat().st_ino
    assert repair(folder_of(staged), dataset, [name], MountedFolder(dataset)).repaired == []
    assert (staged.root / name).stat().st_ino == number


def test_a_copy_that_is_being_staged_or_is_gone_is_left_alone(dataset: Manifest, tmp_path: Path) -> None:
    staged, name, _ = damaged_copy(dataset, tmp_path / "local")
    folder = folder_of(staged)
    with claimed(folder.claims, lambda: False), pytest.raises(StorageError, match="being staged or repaired"):
        repair(folder, dataset, [name], MountedFolder(dataset))
    shutil.rmtree(staged.root)
    with pytest.raises(StorageError, match="No such file"):
        repair(folder, dataset, [name], MountedFolder(dataset))
    assert not staged.root.exists()


def test_a_full_disk_leaves_what_was_there(dataset: Manifest, small_disk: Callable[[str], Path]) -> None:
    disk = small_disk("size=24m")
    staged, name, before = damaged_copy(dataset, disk)
    done = repair(folder_of(staged), dataset, [name], MountedFolder(dataset))
    assert "are needed" in done.not_repaired[name]
    assert (staged.root / name).read_bytes() == before
    assert not folder_of(staged).unfinished.exists()


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Answers every GET with the whole file, or the range asked for."""

    def do_GET(self) -> None:
        try:
            data = Path(self.translate_path(self.path)).read_bytes()
        except OSError:
            return self.send_error(404)
        span = self.headers["Range"]
        if span:
            first, last = map(int, span.removeprefix("bytes=").split("-"))
            data = data[first : last + 1]
        self.send_response(206 if span else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
        return None

    def log_message(self, *_: object) -> None:
        """Says nothing."""


MEND = "import sys\nfrom dlio import cli\nsys.exit(cli.main(['verify', *sys.argv[1:], '--repair']))"


def test_a_url_is_a_source_and_what_it_lacks_is_named(packed: Manifest, tmp_path: Path) -> None:
    """In a process of its own, since fsspec keeps a thread."""
    pytest.importorskip("fsspec")
    pytest.importorskip("aiohttp")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(packed.root)))
    serving = threading.Thread(target=server.serve_forever)
    serving.start()
    try:
        staged = dlio.stage(packed, tmp_path / "local")
        url = f"http://127.0.0.1:{server.server_port}"
        folder_of(staged).marker.write_text(json.dumps({"copy": staged.root.name, "source": url}))
        flip(staged.root / "shard-000001.tfrecord")
        mend = partial(subprocess.run, [sys.executable, "-c", MEND, staged.root], capture_output=True, text=True)
        done = mend()
        assert done.returncode == 0, done.stderr
        assert damaged_files(staged.root, packed) == []
        flip(staged.root / "shard-000001.tfrecord")
        flip(packed.root / "shard-000001.tfrecord", 300)
        done = mend()
        assert done.returncode == 1
        assert f"{url}/shard-000001.tfrecord is damaged" in done.stderr
    finally:
        server.shutdown()
        serving.join()
        server.server_close()


def damaged_copy_of_a_user(packed: Manifest, tmp_path: Path) -> Path:
    """Returns the folder of a copy that user 2001 has staged, with a damaged shard."""
    open_to_all(tmp_path)
    assert as_user(2001, lambda: dlio.stage(packed, tmp_path / "tmp")) == 0
    staged = tmp_path / "tmp" / "dlio" / packed.content_id
    flip(staged / "shard-000001.tfrecord")
    return staged


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users")
class TestOtherUsers:
    def test_root_mends_as_the_owner_and_no_other_user_can(
        self, packed: Manifest, tmp_path: Path, verify: Verify
    ) -> None:
        staged = damaged_copy_of_a_user(packed, tmp_path)

        def stranger() -> None:
            assert cli.main(["verify", str(staged), "--repair"]) == 4

        assert as_user(2002, stranger) == 0
        code, report, err = verify(staged, "--repair")
        assert code == 0, err
        assert report["repaired"] == ["shard-000001.tfrecord"]
        assert {path.stat().st_uid for path in (staged, *staged.rglob("*"))} == {2001}
        assert (tmp_path / "tmp" / "dlio" / ".claims" / packed.content_id).stat().st_uid == 2001

    def test_root_reads_no_source_that_the_owner_may_not_read(
        self, packed: Manifest, tmp_path: Path, verify: Verify
    ) -> None:
        staged = damaged_copy_of_a_user(packed, tmp_path)
        packed.root.chmod(0o700)
        code, _, err = verify(staged, "--repair")
        assert code == 1
        assert "Permission denied" in err

    def test_a_copy_in_another_users_folder_is_left_alone(self, dataset: Manifest, tmp_path: Path) -> None:
        staged, name, before = damaged_copy(dataset, tmp_path / "local")
        os.chown(tmp_path / "local" / "dlio", 2001, 2001)
        with pytest.raises(StorageError, match="can be replaced by another user"):
            repair(folder_of(staged), dataset, [name], MountedFolder(dataset))
        assert (staged.root / name).read_bytes() == before


def test_what_is_a_staged_copy(dataset: Manifest, tmp_path: Path) -> None:
    staged = dlio.stage(dataset, tmp_path / "local")
    (tmp_path / "link").symlink_to(staged.root)
    assert staged_copy(staged.root) == staged_copy(tmp_path / "link") == folder_of(staged)
    assert staged_copy(dataset.root) is None
    assert manifest_of(folder_of(staged)) == (dataset, "")
    other = write_dataset(tmp_path / "other", [5], seed=1)
    with pytest.raises(UsageError, match="another data set"):
        origin_of(folder_of(staged), str(other.root))
