"""Images that are objects at a URL: a web server with index pages, and an S3-compatible server, on this machine."""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

import dlio
from dlio import cli
from dlio.dataset.manifest import NAME
from dlio.errors import DlioError, SourceError, StorageError, UsageError
from dlio.io import remote_files
from dlio.pack.sources import open_source
from dlio.sources import image_folder
from dlio.testing.sources import read_all
from tests.helpers.images import make_image_folder
from tests.helpers.packing import content
from tests.helpers.s3_server import s3_server

fsspec = pytest.importorskip("fsspec")
pytest.importorskip("aiohttp")


class WebServer(ThreadingHTTPServer):
    """Serves a folder, with an index page for each folder.

    Attributes:
        asked: the paths of the requests.
        failing: a part of the paths that are answered with 503.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(("127.0.0.1", 0), partial(Request, directory=str(folder)))
        self.asked: list[str] = []
        self.failing = ""


class Request(SimpleHTTPRequestHandler):
    server: WebServer

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        if self.server.failing and self.server.failing in self.path:
            self.send_error(503)
        else:
            super().do_GET()

    def log_message(self, *_: object) -> None:
        """Logs nothing."""


@pytest.fixture
def web(photos: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[WebServer, str]]:
    """A web server over a folder of photographs, and its URL."""
    monkeypatch.setattr(remote_files, "_FIRST_PAUSE_SECONDS", 0.0)
    make_image_folder(photos, {"dog/small": 3, "eel & ant": 2})
    server = WebServer(photos)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def shards(out: Path) -> dict[str, bytes]:
    """Returns the files of a packed data set except for its manifest, which knows the versions of its inputs."""
    return {name: data for name, data in content(out).items() if name != NAME}


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> None:
    """fsspec keeps a thread for its requests, and connections."""


def test_a_url_holds_what_its_folder_holds(web: tuple[WebServer, str], photos: Path) -> None:
    server, url = web
    found, expected = open_source(url), image_folder(photos)
    listing, wanted = found.listing(), expected.listing()
    assert (list(listing.keys), listing.schema) == (list(wanted.keys), wanted.schema)
    server.asked.clear()
    assert read_all(found, listing) == read_all(expected, wanted)
    assert len(server.asked) == len(listing)  # one request for each image


def test_a_url_is_packed_as_its_folder_is(web: tuple[WebServer, str], photos: Path, tmp_path: Path) -> None:
    # A web server reports no sizes, which the plan of shards needs.
    words = ["--format", "recordio", "--num-shards", "1", "--workers", "2", "--quiet"]
    assert cli.main(["pack", web[1], str(tmp_path / "remote"), *words]) == 0
    assert cli.main(["pack", str(photos), str(tmp_path / "local"), *words]) == 0
    assert shards(tmp_path / "remote") == shards(tmp_path / "local")


def test_objects_that_are_gone_are_skipped_and_told(web: tuple[WebServer, str], photos: Path, tmp_path: Path) -> None:
    source = image_folder(web[1])
    listing = source.listing()
    (photos / "cat/0003.png").unlink()
    with source.reader(listing) as read, pytest.raises(SourceError, match=r"cat/0003\.png.*check that it exists"):
        read(list(listing.keys).index("cat/0003.png"))


def test_a_server_that_fails_ends_the_run(web: tuple[WebServer, str], tmp_path: Path) -> None:
    server, url = web
    server.failing = "cat/0003"
    with pytest.raises(StorageError, match=r"cat/0003\.png.*503"):
        dlio.pack(image_folder(url), tmp_path / "out", on_error="skip", engine="serial")
    server.failing = ""
    assert dlio.pack(image_folder(url), tmp_path / "out", engine="serial").num_samples == 41


def test_a_password_is_never_shown(web: tuple[WebServer, str], tmp_path: Path, capfd) -> None:
    server, url = web
    server.failing = "owl"
    secret = url.replace("://", "://me:pass%2Fword@")
    assert "pass" not in repr(image_folder(secret)) + str(image_folder(secret).path)
    assert cli.main(["pack", secret, str(tmp_path / "out"), "--format", "recordio", "--workers", "1"]) == 4
    told = capfd.readouterr()
    assert "owl" in told.err
    assert "pass" not in told.out + told.err
    encoded = base64.b64encode(b"me:pass/word").decode()
    assert encoded not in told.out + told.err


@pytest.mark.parametrize(
    ("url", "options", "problem"),
    [
        ("http://127.0.0.1:1/photos", {"name": "coco"}, "the source coco cannot read a URL"),
        ("http://127.0.0.1:1/photos", {"root": "/tmp"}, "given the root"),
        ("http://127.0.0.1:1/photos?token=1", {}, "not the URL of a folder"),
        ("nonsense://photos", {}, "nonsense"),
    ],
)
def test_a_url_that_cannot_be_packed_is_refused(url: str, options: dict[str, str], problem: str) -> None:
    with pytest.raises(DlioError, match=problem) as raised:
        open_source(url, **options).listing()
    assert isinstance(raised.value, UsageError)


def test_only_lists_have_roots_at_urls(tmp_path: Path) -> None:
    (tmp_path / "Data_Entry.csv").touch()
    with pytest.raises(UsageError, match="no root at a URL such as http://host/photos: give a folder"):
        open_source(tmp_path, name="chestxray14", root="http://me:pass@host/photos")


@pytest.mark.parametrize("kind", ["csv", "lst", "txt"])
def test_a_list_of_images_at_a_url(web: tuple[WebServer, str], photos: Path, tmp_path: Path, kind: str) -> None:
    names = sorted(str(path.relative_to(photos)) for path in photos.rglob("*.png"))[::-1]
    lines = {"csv": "{1},{0}\n", "lst": "{0}\t{0}\t{1}\n", "txt": "{1} {0}\n"}[kind]
    path, head = tmp_path / f"list.{kind}", "path,label\n" if kind == "csv" else ""
    path.write_text(head + "".join(lines.format(number, name) for number, name in enumerate([*names, "cat/gone.png"])))
    server, url = web
    found, expected = open_source(path, root=url), open_source(path, root=photos)
    listing = found.listing()
    assert server.asked == []
    with found.reader(listing) as read, expected.reader(expected.listing()) as wanted:
        assert [read(row) for row in range(len(names))] == [wanted(row) for row in range(len(names))]
        with pytest.raises(SourceError, match=r"cat/gone\.png.*check that it exists"):
            read(len(names))
    words = ["--format", "recordio", "--num-shards", "1", "--on-error", "skip", "--quiet", "--engine", "serial"]
    secret = url.replace("://", "://me:pass@")
    (photos / path.name).write_bytes(path.read_bytes())
    there = f"{secret}/{path.name}"
    for name, at, root in (
        ("remote", path, ["--root", secret]),
        ("both", there, []),
        ("local", path, ["--root", photos]),
    ):
        assert cli.main(["pack", str(at), str(tmp_path / name), *map(str, root), *words]) == 1  # one is skipped
        assert b"pass" not in (tmp_path / name / NAME).read_bytes()
    assert shards(tmp_path / "remote") == shards(tmp_path / "both") == shards(tmp_path / "local")
    assert "pass" not in repr(open_source(path, root=secret)) + repr(open_source(there))
    with pytest.raises(StorageError, match=rf"cannot read {url}/none.{kind}: 404"):
        open_source(f"{secret}/none.{kind}").listing()


def test_a_bucket_is_packed_as_its_folder_is(photos: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with s3_server(monkeypatch):
        s3 = fsspec.filesystem("s3")
        s3.mkdir("bucket")
        s3.put(f"{photos}/", "bucket/photos/", recursive=True)
        words = ["--format", "recordio", "--workers", "2", "--num-shards", "2", "--quiet"]
        assert cli.main(["pack", "s3://bucket/photos", str(tmp_path / "remote"), *words]) == 0
        before = image_folder("s3://bucket/photos").listing()
        s3.pipe_file("bucket/photos/cat/0000.png", b"other")
        after = image_folder("s3://bucket/photos").listing()
    assert cli.main(["pack", str(photos), str(tmp_path / "local"), *words]) == 0
    assert shards(tmp_path / "remote") == shards(tmp_path / "local")
    assert (before.versions != after.versions).tolist() == [True] + [False] * 35
