"""Users who stage to one DEST at the same moment: each gets a copy, without an error."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import dlio
from dlio.dataset.manifest import Manifest
from dlio.errors import StorageError
from dlio.io.open_folder import OpenFolder
from dlio.stage.client import launch, start
from dlio.stage.copies import base_folder, locations
from dlio.stage.copies.folder import StagedFolder
from dlio.stage.engine import __main__ as agent_main
from dlio.stage.engine import background
from tests.helpers.forked import Forked
from tests.helpers.live import task
from tests.helpers.staging import assert_staged
from tests.helpers.users import ALICE, BOB, as_user, open_to_all

pytestmark = [
    pytest.mark.usefixtures("job_7"),
    pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users"),
]


class Pause:
    """A point in a process where another user's whole run takes place."""

    def __init__(self) -> None:
        self._reached, self._go_on = os.pipe(), os.pipe()
        self._is_used = False

    def here(self) -> None:
        """Waits, the first time only, in Alice's process."""
        if os.geteuid() == ALICE and not self._is_used:
            self._is_used = True
            os.write(self._reached[1], b"!")
            os.read(self._go_on[0], 1)

    def meet(self, held_up: Callable[[], object], between: Callable[[], object]) -> None:
        """Runs `held_up` as Alice, and `between`, as Bob, when she has come to the point."""

        def alice() -> None:
            os.setgroups([])
            os.setgid(ALICE)
            os.setuid(ALICE)
            os.environ["HOME"] = "/nonexistent"
            held_up()

        process = Forked(alice)
        assert os.read(self._reached[0], 1)
        assert as_user(BOB, between) == 0
        os.write(self._go_on[1], b"!")
        assert process.wait() == 0


@pytest.fixture(params=["before DEST/dlio is made", "before the copy is claimed"])
def pause(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pause:
    """A pause when the folder of the copy is chosen."""
    found, plain, safe = Pause(), locations.open_up, locations.check_safe
    is_early = request.param == "before DEST/dlio is made"
    dest = open_to_all(tmp_path)
    if not is_early:
        plain(dest)  # root's: one that Alice has made would be no place for Bob

    def open_up(dest: Path) -> None:
        if is_early:
            found.here()
        plain(dest)

    def check_safe(folder: StagedFolder) -> None:
        safe(folder)
        if not is_early:
            found.here()

    monkeypatch.setattr(locations, "open_up", open_up)
    monkeypatch.setattr(locations, "check_safe", check_safe)
    return found


@pytest.mark.parametrize("strategy", ["replicate", "stripe"])
def test_a_user_who_was_slower_stages_to_a_folder_of_its_own(
    dataset: Manifest, tmp_path: Path, strategy: str, pause: Pause
) -> None:
    dest = tmp_path / "tmp"

    def stage() -> None:
        more = {"allow_shared": True} if strategy == "stripe" else {}
        assert_staged(dlio.stage(dataset, dest, strategy=strategy, **more), dataset)

    pause.meet(stage, stage)
    assert sorted(path.name for path in dest.iterdir()) == ["dlio", f"dlio-u{ALICE}"]


def test_folders_that_the_other_user_has_not_opened_yet_are_waited_for(
    dataset: Manifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alice makes DEST/dlio just before Bob, with a narrow umask: he cannot write there until she has opened it."""
    dest, plain = open_to_all(tmp_path), base_folder._opened_to_others

    def opened_to_others(around: OpenFolder, name: str, mode: int) -> OpenFolder:
        if os.geteuid() == 0:
            (dest / "dlio").mkdir(0o755)
            os.chown(dest / "dlio", ALICE, ALICE)
            os.seteuid(BOB)
        return plain(around, name, mode)

    def bob() -> None:
        monkeypatch.setattr(base_folder, "_opened_to_others", opened_to_others)
        staged = dlio.stage(dataset, dest)
        assert_staged(staged, dataset)
        assert staged.root.parents[1] == dest / f"dlio-u{BOB}"

    assert Forked(bob).wait() == 0


def test_a_name_that_another_user_has_for_good_is_an_error(dataset: Manifest, tmp_path: Path, pause: Pause) -> None:
    dest = tmp_path / "tmp"

    def refused() -> None:
        with pytest.raises(StorageError, match="belongs to another user, or others can change it: remove it"):
            dlio.stage(dataset, dest)

    def squat() -> None:
        dlio.stage(dataset, dest)
        (dest / f"dlio-u{ALICE}").mkdir()

    pause.meet(refused, squat)


@pytest.mark.parametrize("who", ["the agent", "its starter"])
def test_a_slower_agent_fills_a_folder_of_its_own_and_its_starter_finds_it(
    dataset: Manifest, tmp_path: Path, who: str, pause: Pause, monkeypatch: pytest.MonkeyPatch
) -> None:
    dest = tmp_path / "tmp"
    monkeypatch.setattr(background, "UNUSED_SECONDS", 0.0)
    monkeypatch.setattr(background, "_LOOK_SECONDS", 0.25)
    said: list[str] = []
    monkeypatch.setattr(  # in this process
        launch, "agent", lambda given, _: agent_main.work(start.Task.from_json(given), said.append)
    )

    def work() -> None:
        folder = StagedFolder(dest / f"dlio-u{ALICE}", dataset.content_id)
        if who == "the agent":
            agent_main.work(task(dataset.root, dest), said.append)
        else:
            assert start.ensure_agent(dataset.root, dest) == folder
        assert said == ["ready"] and folder.has_manifest()

    pause.meet(work, lambda: dlio.stage(dataset, dest))
