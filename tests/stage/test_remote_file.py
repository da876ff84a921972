"""Any file at a URL is staged as it is: on a web server, in a bucket, and in another file system of fsspec's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import dlio
from dlio import cli
from dlio.dataset.manifest import Manifest
from dlio.errors import ManifestError, StorageError, UsageError
from dlio.io import remote_files
from dlio.stage.planning.job import Listeners
from dlio.stage.run import run
from tests.helpers.s3_server import s3_server
from tests.helpers.staging import MiB, flip, interrupted_after, write_dataset
from tests.helpers.web import WebServer, running

fsspec = pytest.importorskip("fsspec")
Put = Callable[[bytes], str]  #: gives the file a content, and returns its URL
CONTENT = os.urandom(9 * MiB + 1)


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> None:
    """fsspec keeps a thread for its requests; what copies is watched by the tests of mounted folders."""


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_files, "_FIRST_PAUSE_SECONDS", 0.001)


@pytest.fixture
def web(tmp_path: Path) -> Iterator[WebServer]:
    """A web server that says when its files were changed."""
    (tmp_path / "www" / "images").mkdir(parents=True)
    server = WebServer(tmp_path / "www")
    server.headers = {"Last-Modified": "Sat, 03 Feb 2001 04:05:06 GMT"}
    with running(server):
        yield server


@pytest.fixture(params=["https", "s3", "memory"])
def put(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Put]:
    """Puts a file of this name at a URL of each kind."""
    name = "images/my env.sqsh"
    if request.param == "https":
        web: WebServer = request.getfixturevalue("web")

        def on_web(content: bytes) -> str:
            (web.folder / name).write_bytes(content)
            web.headers["ETag"] = f'"{hash(content)}"'
            return f"{web.url}/images/my%20env.sqsh"

        yield on_web
        return
    system = fsspec.filesystem("memory")
    if request.param == "s3":
        with s3_server(monkeypatch):
            system = fsspec.filesystem("s3")
            system.mkdir("bucket")
            yield _put_by(system, f"bucket/{name}")
        return
    yield _put_by(system, f"/bucket/{name}")
    system.rm("/bucket", recursive=True)


def _put_by(system: Any, path: str) -> Put:
    def put(content: bytes) -> str:
        system.pipe_file(path, content)
        return f"{system.protocol if isinstance(system.protocol, str) else system.protocol[0]}://{path.lstrip('/')}"

    return put


def test_a_file_at_a_url_comes_under_its_name(put: Put, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = put(CONTENT)
    assert cli.main(["stage", url, str(tmp_path / "local")]) == 0
    path = Path(capsys.readouterr().out.splitlines()[-1])
    assert path.name == "my env.sqsh" and path.read_bytes() == CONTENT and path.stat().st_mode & 0o777 == 0o600
    (tmp_path / "my env.sqsh").write_bytes(CONTENT)
    staged = Manifest.load(path.parent)
    local = dlio.stage(tmp_path / "my env.sqsh", tmp_path / "local")
    assert staged.shards[1].files == local.shards[1].files and staged.content_id != local.content_id
    assert run(url, tmp_path / "local")[1].source_bytes == 0
    assert dlio.verify(staged) == []
    flip(path)
    assert cli.main(["verify", str(path), "--repair"]) == 0 and path.read_bytes() == CONTENT
    put(CONTENT[1:])
    newer = dlio.stage(url, tmp_path / "local")
    assert newer.path.read_bytes() == CONTENT[1:] and newer.path != path


def test_a_copy_that_was_cut_off_goes_on_and_has_no_name_before(put: Put, tmp_path: Path) -> None:
    url = put(CONTENT)
    with pytest.raises(KeyboardInterrupt):
        run(url, tmp_path / "local", strategy="replicate", listeners=interrupted_after(5 * MiB))
    named = [path for path in (tmp_path / "local").rglob("my env.sqsh") if ".dlio" not in path.parts]
    assert named == []
    staged, summary = run(url, tmp_path / "local", strategy="replicate")
    assert staged.path.read_bytes() == CONTENT
    assert summary.source_bytes <= len(CONTENT) - 3 * MiB


def test_a_file_that_changes_while_it_is_copied_gets_no_name(put: Put, tmp_path: Path) -> None:
    url = put(CONTENT)

    def change(num_bytes: int) -> None:
        put(bytes(reversed(CONTENT)))

    with pytest.raises(StorageError, match=r"my env.sqsh: it has changed from the version .* to .*: stage it again"):
        run(url, tmp_path / "local", strategy="replicate", listeners=Listeners(expect=change))
    assert dlio.stage(url, tmp_path / "local").path.read_bytes() == bytes(reversed(CONTENT))


def test_a_change_just_before_a_read_is_noticed_where_reads_tell_no_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/changing/weights", b"1" * 1000)
    plain = type(memory).cat_file

    def changed_first(self: Any, path: str, **span: Any) -> bytes:
        memory.pipe_file("/changing/weights", b"2" * 1000)
        read: bytes = plain(self, path, **span)
        return read

    monkeypatch.setattr(type(memory), "cat_file", changed_first)
    with pytest.raises(StorageError, match="it has changed from the version"):
        dlio.stage("memory://changing/weights", tmp_path / "local")
    memory.rm("/changing", recursive=True)


def test_a_time_is_kept_and_tells_a_newer_file(web: WebServer, tmp_path: Path) -> None:
    (web.folder / "weights").write_bytes(b"1")
    staged = dlio.stage(f"{web.url}/weights", tmp_path / "local")
    assert staged.path.stat().st_mtime == 981_173_106
    web.headers["Last-Modified"] = "Sat, 03 Feb 2001 04:05:08 GMT"
    (web.folder / "weights").write_bytes(b"2")
    assert dlio.stage(f"{web.url}/weights", tmp_path / "local").path.read_bytes() == b"2"
    for odd in ("Sat, 03 Feb 9999 04:05:08 GMT", "yesterday"):
        web.headers["Last-Modified"] = odd
        assert dlio.stage(f"{web.url}/weights", tmp_path / "local").path.stat().st_mtime == 0


def test_a_data_set_at_a_url_is_one_still(web: WebServer, tmp_path: Path) -> None:
    source = write_dataset(web.folder / "packed", [700, 5])
    assert dlio.stage(f"{web.url}/packed", tmp_path / "local") == source


def test_what_cannot_be_staged_is_named(web: WebServer, tmp_path: Path) -> None:
    where = tmp_path / "local"
    with pytest.raises(ManifestError, match=r"/lost/manifest.jsonl does not exist; .* a packed data set, or of a file"):
        dlio.stage(f"{web.url}/lost", where)
    (web.folder / "env").write_bytes(b"env")
    (web.folder / ".dlio").write_bytes(b"")
    for name in ("a%2Fenv", "%0A", "."):
        with pytest.raises((UsageError, ManifestError)):
            dlio.stage(f"{web.url}/{name}", where)
    with pytest.raises(UsageError, match=r"/env is given with \? or #\. A signed URL expires") as error:
        dlio.stage(f"{web.url}/env?signature=secret", where)
    assert "secret" not in str(error.value)
    web.headers["Content-Encoding"] = "gzip"
    with pytest.raises(StorageError, match="sends it as gzip"):
        dlio.stage(f"{web.url}/env", where)
    web.headers = {}
    with pytest.raises(StorageError, match=r"env: its server gives neither an ETag nor the time of the last change"):
        dlio.stage(f"{web.url}/env", where)
    web.answers_ranges = False
    with pytest.raises(StorageError, match=r"env: its server does not support range requests"):
        dlio.stage(f"{web.url}/env", where)
    assert not where.exists() or not list(where.rglob("env*"))


def test_a_password_is_used_and_shown_nowhere(web: WebServer, tmp_path: Path) -> None:
    (web.folder / "env").write_bytes(CONTENT[:MiB])
    url = f"{web.url}/env".replace("//", "//user:secret@")
    staged = dlio.stage(url, tmp_path / "local")
    assert staged.path.read_bytes() == CONTENT[:MiB]
    assert not [path for path in staged.root.rglob("*") if path.is_file() and b"secret" in path.read_bytes()]
