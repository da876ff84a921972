"""Another user mounts file systems over the places of copies: in their own namespace, or by fusermount3."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import dlio
from dlio.dataset.manifest import Manifest
from dlio.stage.client.resolve import staged
from dlio.stage.upkeep.clean import clean
from dlio.stage.upkeep.scrub import scrub
from tests.helpers.staging import assert_staged
from tests.helpers.users import BOB, given_to_bob

pytestmark = [
    pytest.mark.usefixtures("job_7"),
    pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users"),
    pytest.mark.timeout(60),
]


def as_bob() -> None:
    os.setgroups([])
    os.setgid(BOB)
    os.setuid(BOB)


@contextmanager
def silent_mount(place: Path, *options: str) -> Iterator[None]:
    """Mounts as fusermount3 does for Bob, at a folder of his; no process ever answers."""
    place.mkdir(parents=True)
    given_to_bob(place)
    try:
        device = os.open("/dev/fuse", os.O_RDWR)
    except OSError as error:
        pytest.skip(f"FUSE cannot be mounted here: {error}")
    try:
        words = ",".join((f"fd={device},rootmode=40000,user_id={BOB},group_id={BOB}", *options))
        mount = ["mount", "-i", "-t", "fuse", "-o", words, "bob", place]
        if subprocess.run(mount, pass_fds=[device], capture_output=True).returncode:
            pytest.skip("FUSE cannot be mounted here")
        yield
    finally:
        os.close(device)  # a process that waits for an answer gets an error
        subprocess.run(["umount", "-l", place], check=False)


def test_a_mount_in_a_users_namespace_is_seen_by_nobody_else(dest: Path, dataset: Manifest) -> None:
    if not shutil.which("unshare"):
        pytest.skip("needs unshare, apt-get install util-linux")
    for folder in (dest / "dlio", dest / "dlio" / dataset.content_id):
        folder.mkdir()
    over = f"mount -t tmpfs bob {dest}/dlio && mkdir {dest}/dlio/planted && echo over && read -r end"
    command = ["unshare", "-Ur", "-m", "sh", "-c", over]
    bob = subprocess.Popen(command, preexec_fn=as_bob, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with bob:
        assert bob.stdin and bob.stdout
        if bob.stdout.readline() != b"over\n":
            pytest.skip("needs user namespaces")
        assert not (dest / "dlio").is_mount()
        copy = dlio.stage(dataset, dest)
        assert_staged(copy, dataset)
        assert not (dest / "dlio" / "planted").exists()
        bob.stdin.close()


PLACES: list[Callable[[str], str]] = [
    lambda _: "dlio",
    lambda copy: f"dlio/{copy}",
    lambda copy: f"dlio/.claims/{copy}",
    lambda copy: f"dlio/.leases/{copy}@{16 * 'a'}",
]


@pytest.mark.parametrize("place", PLACES, ids=["cache", "copy", "claims", "lease"])
def test_a_users_silent_mount_keeps_nobody_waiting(
    dest: Path, dataset: Manifest, place: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without user_allow_other, the system lets nobody but Bob in; not even root waits."""
    monkeypatch.setenv("DLIO_STAGED", str(dest))
    at = dest / place(dataset.content_id)
    for folder in reversed(at.relative_to(dest).parents):
        (dest / folder).mkdir(exist_ok=True)
        (dest / folder).chmod(0o1777)
    with silent_mount(at):
        copy = dlio.stage(dataset, dest)
        assert_staged(copy, dataset)
        assert staged(dataset.root).root == copy.root
        assert all(not each.damaged for each in scrub(dest, deadline=2))
        clean(dest, deadline=5)
        assert at.parent.is_dir()


def test_a_deadline_holds_for_a_silent_mount_that_lets_root_in(dest: Path) -> None:
    left: dict[Path, str] = {}
    with silent_mount(dest / "dlio" / ("a" * 32), "allow_other"):
        assert clean(dest, deadline=0.5, left=left.__setitem__) == []
        (found,) = scrub(dest, deadline=0.5)
    assert "took longer than 0.5 s" in left[dest]
    assert found.problem
