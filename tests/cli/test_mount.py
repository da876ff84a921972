"""`dlio mount`: a SquashFS data set as one folder, seen by a command."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dlio
from dlio.errors import MissingError
from dlio.look import mounting
from dlio.testing.container import content
from tests.helpers.squashfs import needs


@pytest.fixture
def squashed(photos, tmp_path) -> Path:
    dlio.pack(photos, tmp_path / "set", format="squashfs", num_shards=3, engine="serial")
    return tmp_path / "set"


@pytest.fixture
def mountable() -> None:
    """Skips if this machine allows no mounts."""
    try:
        mounting.find_way(3)
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
    """In a mount namespace, where all may open /dev/fuse, as on most machines, and enter the folders above the set."""
    tmp_path.chmod(0o777)
    subprocess.run(["chmod", "-R", "a+rX", squashed], check=True)
    script = f"""
    mount --bind {tmp_path} /mnt && mount -t tmpfs -o dev dlio /mnt/dev && mknod -m 666 /mnt/dev/fuse c 10 229
    mount --bind /mnt/dev/fuse /dev/fuse && cd /mnt
    setpriv --reuid 65534 --regid 65534 --clear-groups {sys.executable} -m dlio mount /mnt/set /mnt/here -- \
        sh -c 'id -u; ls /mnt/here; wc -c < /mnt/here/cat/0001.png'
    """
    (tmp_path / "dev").mkdir()
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
    assert f"enroot:    dlio mount {squashed} {tmp_path / 'here'} -- enroot start" in out
    assert not (tmp_path / "here").exists()


def test_the_copy_that_is_staged_on_the_node_is_taken(run, squashed, tmp_path):
    copy = dlio.stage(squashed, tmp_path / "ssd").root
    code, out, _ = run("mount", squashed, tmp_path / "here", "--print", "--json")
    assert code == 0
    assert json.loads(out)["images"] == [str(copy / f"shard-00000{number}.sqsh") for number in range(3)]


@pytest.fixture
def no_namespaces(tmp_path, monkeypatch) -> Path:
    """The folder of programs of a machine without user namespaces, like one whose kernel forbids them."""
    folder = tmp_path / "programs"
    folder.mkdir()
    (folder / "unshare").write_text("#!/bin/sh\necho not permitted >&2\nexit 1\n")
    (folder / "unshare").chmod(0o755)
    for name in ("sh", "cp", "rm", "rmdir", "mkdir", "cat", "squashfuse_ll", "fusermount3", "fuse-overlayfs"):
        if found := shutil.which(name):
            (folder / name).symlink_to(found)
    monkeypatch.setenv("PATH", str(folder))
    return folder


@needs("squashfuse_ll", "fusermount3", "fuse-overlayfs", "/dev/fuse")
@pytest.mark.parametrize("num_shards", [1, 3])
@pytest.mark.usefixtures("no_namespaces")
def test_without_namespaces_fuse_mounts_and_unmounts(num_shards, photos, tmp_path, monkeypatch):
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    dlio.pack(photos, tmp_path / "set", format="squashfs", num_shards=num_shards, engine="serial")
    folder, copy = tmp_path / "new" / "it's here", tmp_path / "copy"
    done = started(tmp_path / "set", folder, "--quiet", "--", "sh", "-c", f'cp -r "{folder}" {copy}; exit 7')
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    left = [path for path in mounts if str(tmp_path) in path]
    for path in left:
        subprocess.run(["fusermount3", "-u", "-z", path.replace("\\040", " ")], check=False)
    assert not left
    assert (done.returncode, done.stderr) == (7, "")
    found = {name: data for name, data in content(copy).items() if not name.startswith(".dlio-")}
    assert found == content(photos)
    assert not list(folder.iterdir())


@needs("squashfuse_ll", "fusermount3", "/dev/fuse")
@pytest.mark.parametrize(
    ("lacking", "problem"),
    [
        (
            "fuse-overlayfs",
            "several images need fuse-overlayfs then: apt-get install fuse-overlayfs, or make one image",
        ),
        ("fusermount3", "fusermount3 is not installed: apt-get install fuse3"),
    ],
)
def test_what_replaces_namespaces_is_named(lacking, problem, no_namespaces, run, squashed, tmp_path):
    (no_namespaces / lacking).unlink(missing_ok=True)
    code, _, error = run("mount", squashed, tmp_path / "here", "--", "true")
    assert code == 5
    assert f"this machine allows no user namespace (not permitted), and {problem}" in error
    assert "user.max_user_namespaces" in error
    assert not (tmp_path / "here").exists()


@needs("squashfuse_ll")
def test_a_device_that_is_not_there_is_named(run, squashed, tmp_path, monkeypatch):
    monkeypatch.setattr(mounting, "_DEVICE", tmp_path / "fuse")
    code, _, error = run("mount", squashed, tmp_path / "here", "--", "true")
    assert code == 5
    assert "fuse cannot be opened (No such file or directory): the centre can load the module fuse" in error


@pytest.mark.usefixtures("mountable")
def test_a_file_that_two_images_have_is_no_silent_loss(run, squashed, photos, tmp_path):
    dlio.pack(photos, tmp_path / "again", format="squashfs", num_shards=1, engine="serial")
    dlio.merge([squashed, tmp_path / "again"], tmp_path / "merged")
    code, _, error = run("mount", tmp_path / "merged", tmp_path / "here", "--", "true")
    assert code == 2
    assert "cat/0000.png is in " in error
    assert "base1/shard-000000.sqsh" in error
    assert not (tmp_path / "here").exists()


@pytest.mark.usefixtures("mountable")
def test_merged_sets_of_different_files_are_one_folder(squashed, photos, tmp_path):
    for path in photos.glob("*/*"):
        path.rename(path.with_stem(f"later {path.stem}"))
    dlio.pack(photos, tmp_path / "later", format="squashfs", num_shards=2, engine="serial")
    dlio.merge([squashed, tmp_path / "later"], tmp_path / "merged")
    done = started(tmp_path / "merged", tmp_path / "here", "--", "find", tmp_path / "here", "-name", "*.png")
    assert len(done.stdout.splitlines()) == 24


@needs("unshare")
def test_what_the_machine_lacks_is_named(run, squashed, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    code, _, error = run("mount", squashed, tmp_path / "here", "--", "true")
    assert code == 5
    assert "squashfuse is not installed: apt-get install squashfuse" in error
    assert "--print gives the lines" in error
