"""Links that another user of the node plants in a cache are not followed."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

import dlio
from dlio.dataset.manifest import Manifest
from dlio.stage.upkeep.clean import clean
from tests.helpers.staging import assert_staged, write_dataset
from tests.helpers.users import ALICE, BOB, COPY, as_user, is_whole, marked, open_to_all

pytestmark = [
    pytest.mark.usefixtures("job_7"),
    pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users"),
    pytest.mark.timeout(60),
]


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


def test_a_link_instead_of_a_users_folder_is_not_followed(dest: Path, thesis: Path, dataset: Manifest) -> None:
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
