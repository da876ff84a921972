"""The check of the names in many lines of a manifest at once."""

from __future__ import annotations

import msgspec
import pytest

from dlio.dataset.shard import File, Shard, checked

PIECE = 1 << 17  # of the text that is checked together


@pytest.mark.parametrize("before", range(-4, 2))
@pytest.mark.parametrize("pieces", [1, 2])
def test_a_name_that_leads_outside_is_found_wherever_it_lies(before: int, pieces: int) -> None:
    text = msgspec.json.encode(_shards("", "../other"))
    filled = _shards("x" * (pieces * PIECE + before - text.index(b"../")), "../other")
    assert msgspec.json.encode(filled).index(b"../") == pieces * PIECE + before
    with pytest.raises(ValueError, match=r"'\.\./other' points outside"):
        checked(filled, msgspec.json.encode(filled))


def _shards(first: str, second: str) -> list[Shard]:
    return [Shard(f"a{first}", 0, (File("b", 1, "c"),)), Shard("d", 0, (File(second, 1, "e"),))]
