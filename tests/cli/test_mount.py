"""`dlio mount`: a SquashFS data set as one folder, seen by a command."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dlio
from dlio.errors import MissingError
from dlio.look import mount
from dlio.testing.folders import content
from tests.helpers.squashfs import needs


@pytest.fixture
def squashed(photos, tmp_path) -> Path:
    dlio.pack(photos, tmp_path / "set", format="squashfs", num_shards=3, engine="serial")
    return tmp_path / "set"


@pytest.fixture
def mountable() -> None:
    """Skips where this machine gives no mounts."""
    try:
        mount.check_machine()
    except MissingError as error:
        pytest.skip(str(error))


def started(*words: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "dlio", "mount", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.usefixtures("mountable")
def test_a_command_sees_all_images_as_one_folder(squashed, photos, tmp_path):
    folder, copy = tmp_path / "new" / "it's here", tmp_path / "copy"
    done = started(squashed, folder, "--quiet", "--", "cp", "-r", folder, copy)
    assert (done.returncode, done.stderr) == (0, "")
    found = {name: data for name, data in content(copy).items() if not name.startswith(".dlio-")}
    assert found == content(photos)
    assert not list(folder.iterdir())  # nobody else sees it


@pytest.mark.usefixtures("mountable")
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
def test_a_user_without_rights_needs_no_root(squashed, tmp_path):
    """In a mount namespace, where /dev/fuse is open to all as on most machines."""
    for parent in (tmp_path, *tmp_path.parents[:2]):
        parent.chmod(0o755)
    tmp_path.chmod(0o777)
    subprocess.run(["chmod", "-R", "a+rX", squashed], check=True)
    script = f"""
    mount -t tmpfs -o dev dlio {tmp_path}/mnt && mknod -m 666 {tmp_path}/mnt/fuse c 10 229
    mount --bind {tmp_path}/mnt/fuse /dev/fuse
    setpriv --reuid 65534 --regid 65534 --clear-groups {sys.executable} -m dlio mount {squashed} {tmp_path}/here -- \
        sh -c 'id -u; ls {tmp_path}/here; wc -c < {tmp_path}/here/cat/0001.png'
    """
    (tmp_path / "mnt").mkdir()
    done = subprocess.run(["unshare", "--mount", "sh", "-ec", script], capture_output=True, text=True, check=False)
    if "Permission denied" in done.stderr and "site-packages" in done.stderr:
        pytest.skip("another user cannot read this installation")
    size = len(content(tmp_path / "photos")["cat/0001.png"])
    assert done.stderr == ""
    assert done.stdout.split() == ["65534", "cat", "dog", str(size)]


@pytest.mark.usefixtures("mountable")
def test_words_exit_code_and_ids_are_the_commands(squashed, tmp_path):
    script = 'id -u; echo "$@"; exit 7'
    done = started(squashed, tmp_path / "here", "--", "sh", "-c", script, "sh", "--print", "--", "a b")
    mine = subprocess.run(["id", "-u"], capture_output=True, text=True, check=True).stdout
    assert (done.returncode, done.stdout) == (7, f"{mine}--print -- a b\n")


@pytest.mark.usefixtures("mountable")
def test_one_image_is_mounted_too(photos, tmp_path):
    dlio.pack(photos, tmp_path / "set", format="squashfs", num_shards=1, engine="serial")
    done = started(tmp_path / "set", tmp_path / "here", "--", "ls", tmp_path / "here")
    assert done.stdout.split() == ["cat", "dog"]


@pytest.mark.usefixtures("mountable")
def test_a_folder_with_files_is_not_covered(run, squashed, tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "here" / "file").write_text("mine")
    code, _, error = run("mount", squashed, tmp_path / "here", "--", "true")
    assert code == 2
    assert "is not empty" in error


def test_other_formats_are_refused_with_the_way_out(run, packed, tmp_path):
    code, _, error = run("mount", packed, tmp_path / "here", "--", "true")
    assert code == 2
    assert f"of the format tfrecord, which no program can mount: dlio convert {packed} OUT --format squashfs" in error


def test_parts_of_shards_are_refused(run, squashed, tmp_path):
    assert run("split", squashed, "-o", tmp_path / "parts", "--fractions", "0.5,0.5")[0] == 0
    code, _, error = run("mount", tmp_path / "parts" / "train", tmp_path / "here", "--", "true")
    assert code == 2
    assert "has parts of shards only" in error


def test_the_lines_for_container_engines_are_printed(run, squashed, tmp_path):
    code, out, _ = run("mount", squashed, tmp_path / "here", "--print")
    assert code == 0
    image, folder = squashed / "shard-000001.sqsh", tmp_path / "here" / "shard-000001"
    assert f"-B {image}:{folder}:image-src=/" in out
    assert f'"{image}:{folder}:sqsh"' in out
    assert not (tmp_path / "here").exists()


@needs("unshare")
def test_what_the_machine_lacks_is_named(run, squashed, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, error = run("mount", squashed, tmp_path / "here", "--", "true")
    assert code == 5
    assert "squashfuse is not installed: apt-get install squashfuse" in error
    assert "--print gives the lines" in error
