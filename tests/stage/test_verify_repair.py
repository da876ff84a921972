"""`verify --repair` copies damaged files of a staged copy again from its source, or leaves them unchanged."""

from __future__ import annotations

import http.server
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

import dlio
from dlio import cli
from dlio.dataset.manifest import NAME, Manifest
from dlio.dataset.schema import Schema
from dlio.stage.planning.plan import partitioned
from dlio.stage.run import run
from tests.helpers.damage import DAMAGES, assert_whole
from tests.helpers.staging import damaged_files, flip, folder_of, node
from tests.helpers.users import as_user, open_to_all
from tests.helpers.web import running

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


@pytest.mark.filterwarnings("ignore:unclosed file")  # the damage done by `DAMAGES`
@pytest.mark.parametrize("damage", DAMAGES)
def test_damaged_files_are_repaired(packed: Manifest, tmp_path: Path, verify: Verify, damage: str) -> None:
    staged, names = (
        dlio.stage(packed, tmp_path / "local"),
        ["shard-000001.tfrecord", "shard-000002.samples.npz", "shard-000003.idx"],
    )
    for name in names:
        DAMAGES[damage](staged.root / name)
    code, report, err = verify(staged.root, "--repair")
    assert (code, report["repaired"], report["not_repaired"]) == (0, names, {})
    assert all(name in err for name in names)
    assert_whole(staged, packed)
    assert verify(staged.root)[0] == 0


def test_repairing_an_intact_copy_writes_nothing_and_needs_no_source(
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
def test_a_damaged_manifest_is_named_and_repaired(
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


def test_damage_in_the_source_is_named_and_the_rest_repaired(packed: Manifest, tmp_path: Path, verify: Verify) -> None:
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


def test_a_changed_source_is_refused_and_another_can_be_named(packed: Manifest, tmp_path: Path, verify: Verify) -> None:
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


def test_a_source_named_by_relative_path_is_found_elsewhere(
    packed: Manifest, tmp_path: Path, verify: Verify, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    staged = dlio.stage("packed", tmp_path / "local")
    flip(staged.root / "shard-000001.tfrecord")
    monkeypatch.chdir("/")
    assert verify(staged.root, "--repair")[0] == 0


@pytest.mark.parametrize("marker", ["{}", '{"source": "packed"}', "[" * 100_000, '{"source": 7}', "no json"])
def test_a_copy_without_a_known_source_needs_one(packed: Manifest, tmp_path: Path, verify: Verify, marker: str) -> None:
    staged = dlio.stage(packed, tmp_path / "local")
    flip(staged.root / "shard-000001.tfrecord")
    folder_of(staged).marker.write_text(marker)
    code, _, err = verify(staged.root, "--repair")
    assert code == 1
    assert "name the source with --from" in err
    assert verify(staged.root, "--repair", "--from", packed.root)[0] == 0


def test_only_complete_staged_copies_are_repaired(packed: Manifest, tmp_path: Path, verify: Verify) -> None:
    code, _, err = verify(packed.root, "--repair")
    assert code == 2
    assert "is not a staged copy" in err
    staged = dlio.stage(packed, tmp_path / "local")
    (staged.root / NAME).unlink()
    code, _, err = verify(staged.root, "--repair")
    assert code == 2
    assert "run dlio stage again" in err
    assert verify(staged.root, "--from", packed.root)[0] == 2
    assert verify()[0] == 2


def test_only_the_files_of_a_part_are_repaired(packed: Manifest, tmp_path: Path, verify: Verify) -> None:
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
        """Logs nothing."""


MEND = "import sys\nfrom dlio import cli\nsys.exit(cli.main(['verify', *sys.argv[1:], '--repair']))"


def test_a_copy_is_repaired_from_a_url_and_failures_named(packed: Manifest, tmp_path: Path) -> None:
    """In its own process, since fsspec keeps a thread."""
    pytest.importorskip("fsspec")
    pytest.importorskip("aiohttp")
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(packed.root)))
    with running(server):
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
