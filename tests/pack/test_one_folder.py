"""Images that are shown as one folder: nothing of one may hide a file or folder of another."""

from __future__ import annotations

from itertools import permutations

import pytest

from dlio.dataset.schema import IMAGE_CLASSIFICATION, Sample
from dlio.errors import UsageError
from dlio.pack.inspect.one_folder import check_one_folder
from dlio.testing.container import Container


def images(folder, *keys):
    """Writes an image of each list of keys."""
    folder.mkdir(exist_ok=True)
    paths = []
    for number, each in enumerate(keys):
        records = [Sample(key, {"image": b"\xff\xd8\xff", "label": 0}) for key in each]
        paths.append(Container("squashfs").write(folder / f"shard-{number}", IMAGE_CLASSIFICATION, records))
    return paths


def test_images_share_folders(tmp_path):
    check_one_folder(
        images(tmp_path, ["a/1.jpg", "a/b/1.jpg", "1.jpg"], ["a/2.jpg", "a/b/2.jpg"], ["2.jpg", "b/1.jpg"])
    )


@pytest.mark.parametrize(
    ("first", "second", "path"),
    [
        (["a/1.jpg"], ["a/2.jpg", "a/1.jpg"], "a/1.jpg"),
        (["1.jpg"], ["a/1.jpg", "1.jpg"], "1.jpg"),
        (["a/b.jpg"], ["a/b.jpg/1.jpg"], "a/b.jpg"),
        (["b.jpg"], ["b.jpg/c/1.jpg"], "b.jpg"),
        (["b"], ["b.jpg"], "b.jpg"),
    ],
)
def test_what_hides_something_is_named_with_both_images(first, second, path, tmp_path):
    paths = images(tmp_path, first, second)
    for order in permutations([*paths, *images(tmp_path / "other", ["c/1.jpg"])]):
        with pytest.raises(UsageError, match=rf"^{path} is in .*/shard-[01]\.sqsh and in .*/shard-[01]\.sqsh, and one"):
            check_one_folder(order)
