"""What names a data set wherever it is staged: 32 hex digits over its schema and its files' digests."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from msgspec.structs import astuple

from dlio.dataset import json_lines
from dlio.dataset.shard import Shard
from dlio.io import files

_VERSION = 1  # which content ids are over: a data set keeps its id
_AT_ONCE = 1024  # shards turned into text: their values take ten times its size


@json_lines.uncollected()
def content_id(header: Mapping[str, object], shards: Sequence[Shard]) -> str:
    """Returns the content id of a manifest with this first line and these shards."""
    head = {**header, "dlio": _VERSION, "origin": None, "shards": []}  # the origin does not change the data
    before, _, after = json.dumps(head, sort_keys=True).encode().rpartition(b"[]")
    running = files.new_hash(files.DEFAULT_DIGEST)
    running.update(before + b"[")
    for start in range(0, len(shards), _AT_ONCE):
        text = json_lines.dense([_content(shard) for shard in shards[start : start + _AT_ONCE]])
        running.update((b", " if start else b"") + text[1:-1])
    running.update(b"]" + after)
    return running.hexdigest()


def _content(shard: Shard) -> tuple[object, ...]:
    entries = [*map(astuple, shard.files)]
    part = () if shard.part is None else ((shard.part.num_records, shard.part.runs),)
    return (shard.num_samples, entries, *part)
