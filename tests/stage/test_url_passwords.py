"""Passwords and keys in URLs: only their server gets them; no error, log, marker or output holds them."""

from __future__ import annotations

import base64
import logging
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

import pytest

import dlio
from dlio import cli
from dlio.dataset.manifest import NAME, Manifest
from dlio.errors import ManifestError, SourceError, StorageError, UsageError
from tests.helpers.hostile_server import Server
from tests.helpers.staging import damaged_files

pytest.importorskip("fsspec")
pytestmark = pytest.mark.usefixtures("tried_again_soon")

SECRET = "Hush"
ODD = f"{SECRET}@:/?#%+{SECRET} é中\N{PILE OF POO}"


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> None:
    """fsspec keeps a thread for its requests; what copies is watched by the tests of mounted folders."""


@pytest.fixture
def url(server: Server) -> str:
    """Needs a user and a password that holds all that must be quoted."""
    return server.url.replace("//", f"//us%3Aer:{quote(ODD, safe='')}@")


def test_the_server_is_told_them_and_nobody_else(
    server: Server, url: str, dataset: Manifest, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    staged = dlio.stage(url, tmp_path / "local")
    assert damaged_files(staged.root, dataset) == []
    for _, headers in server.asked:
        assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")).decode() == f"us:er:{ODD}"
    assert SECRET not in caplog.text
    assert SECRET not in (staged.root / ".dlio" / "copy.json").read_text()
    assert server.url in (staged.root / ".dlio" / "copy.json").read_text()


@pytest.mark.parametrize("status", [401, 403, 404, 416, 500])
@pytest.mark.parametrize("missing", [NAME, "shard-00004.bin"])
def test_no_error_tells_them_nor_what_it_comes_from(
    server: Server, url: str, status: int, missing: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = server.answer
    server.answer = lambda request: request.begin(status) if request.path == f"/{missing}" else whole(request)
    with pytest.raises((StorageError, ManifestError)) as raised:
        dlio.stage(url, tmp_path / "local", strategy="replicate")
    printed = "".join(traceback.format_exception(raised.value))
    assert f"{server.url}/{missing}" in printed
    assert SECRET not in printed
    assert cli.main(["stage", url, str(tmp_path / "local")]) == raised.value.exit_code
    assert SECRET not in "".join(capfd.readouterr())


def test_one_that_is_not_quoted_is_refused_and_not_told(
    server: Server, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for mark in "/?#":
        url = server.url.replace("//", f"//user:{SECRET}{mark}{SECRET}@") + "/packed"
        with pytest.raises(UsageError, match="%2F %3F %23") as raised:
            dlio.stage(url, tmp_path)
        assert SECRET not in "".join(traceback.format_exception(raised.value))
    assert server.asked == []
    assert dlio.stage(server.url.replace("//", f"//user:{SECRET}@{SECRET}@"), tmp_path)  # clear enough
    assert SECRET not in "".join(capfd.readouterr())


def test_a_redirection_gets_no_password_and_its_query_stays_secret(
    server: Server, url: str, serve: Callable[[], Server], tmp_path: Path
) -> None:
    other = serve()
    other.answer = lambda request: request.begin(403)
    server.answer = lambda request: request.begin(
        302, Location=f"{other.url}/signed{request.path}?X-Amz-Signature={SECRET}", Content_Length=0
    )
    with pytest.raises(StorageError, match="403") as raised:
        dlio.stage(url, tmp_path)
    printed = "".join(traceback.format_exception(raised.value))
    assert f"{other.url}/signed/{NAME}" in printed
    assert SECRET not in printed
    assert other.asked
    assert all("Authorization" not in headers for _, headers in other.asked)


def test_keys_in_the_url_of_a_bucket_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"s3://bucket/packed: a bucket's URL holds no keys") as raised:
        dlio.stage(f"s3://AKIA:{SECRET}@bucket/packed", tmp_path)
    assert SECRET not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize(
    "arguments",
    [
        ["info", "URL"],
        ["verify", "URL"],
        ["convert", "URL", "out", "--format", "hdf5"],
        ["pack", "URL", "out", "--format", "hdf5"],
        ["pack", "no-such-photos", "URL", "--format", "hdf5"],
        ["index", "URL", "--format", "tfrecord"],
        ["stage", "URL", "URL"],
        ["stage", "nothing" + "URL", "out"],
        ["clean", "URL"],
        ["plan", "URL", "--nodes", "URL"],
        ["stage", "--strategy", "URL", "photos"],
        ["URL"],
        ["info", "packed", "URL"],
    ],
)
def test_no_verb_tells_them(arguments: list[str], url: str, capfd: pytest.CaptureFixture[str]) -> None:
    given = [argument.replace("URL", url) for argument in arguments]
    with suppress(SystemExit):
        assert (cli.main(given) == 0) == (arguments == ["info", "URL"])
    shown = "".join(capfd.readouterr())
    assert shown
    assert SECRET not in shown
    assert quote(SECRET + "@", safe="") not in shown


def test_functions_that_take_paths_do_not_tell_them(url: str, tmp_path: Path) -> None:
    for call in (Manifest.load, dlio.sources.open_source, dlio.sources.packed):
        with pytest.raises((ManifestError, StorageError, UsageError, SourceError)) as raised:
            found = call(url)
            found.listing()
        assert SECRET not in "".join(traceback.format_exception(raised.value))


@pytest.mark.parametrize("engine", ["dask", "ray", "serial", "mpi", "spark"])
def test_the_address_of_a_cluster_is_told_without_them(
    engine: str, tmp_path: Path, capfd: pytest.CaptureFixture[str], photos: Path
) -> None:
    address = f"tcp://user:{SECRET}@127.0.0.1:1"
    command = ["pack", str(photos), str(tmp_path / "out"), "--format", "recordio", "--engine", engine]
    assert cli.main([*command, "--engine-address", address]) != 0
    shown = "".join(capfd.readouterr())
    assert "127.0.0.1:1" in shown
    assert SECRET not in shown
