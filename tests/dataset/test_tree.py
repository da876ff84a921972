"""The list of files, folders and links of a copy, and how it is read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from dlio.dataset.location import TREE
from dlio.dataset.tree import Entry, decoded, encoded, manifest_of
from dlio.errors import ManifestError
from dlio.io import limits

ENTRIES = [
    Entry("folder", "env", 0o755, -5, 100),
    Entry("file", "env/a\n\udcff", 0o644, 2**62, 2**32 - 1, 2**40),
    Entry("folder", "env/b", 0o700, 0, 0),
    Entry("link", "env/b/c", 0o777, 7, 0, 0, "/\udcfe"),
]
HEAD = b'{"tree":1,"from":"/shared/env"}\n'


def test_a_list_is_read_as_it_was_written():
    assert decoded(encoded(ENTRIES, "env"), Path("env.tree")) == ENTRIES


def line(**changes: object) -> bytes:
    """Returns a list of a folder and of a file in it, with changes to the file."""
    entry = {"kind": "file", "path": "env/x", "mode": 0o644, "time": 0, "group": 0, "bytes": 1, "target": ""} | changes
    return HEAD + b'["folder","env",493,0,0,0,""]\n' + json.dumps(list(entry.values())).encode() + b"\n"


@pytest.mark.parametrize(
    "data",
    [
        b"", b"{}\n", b'{"tree":2}\n', HEAD + b"{}\n", HEAD + b"[[[", line(kind="device"), line(path="other/x"),
        line(path="../x"), line(path="/x"), line(path="env/../x"), line(path="env/."), line(path="env//x"),
        line(path="env/x\0"), line(path="env"), line(path=""), line(mode=0o4755), line(mode=-1), line(time=2**64),
        line(group=-2), line(bytes=-1), line(target=None), line() + line().split(b"\n")[2] + b"\n",
        line(kind="link", target="/tmp") + b'["file","env/x/y",420,0,0,1,""]\n',
        line(mode=0o666), line(mode=0o044), line(kind="folder", mode=0o555), line(kind="link", target="a\0b"),
        line(path="env/\ud800"), line(kind="link", target="\ud800"),
    ],
)  # fmt: skip
def test_a_list_that_leads_elsewhere_is_refused(data):
    with pytest.raises(ManifestError, match=r"^env.tree, line \d: "):
        decoded(data, Path("env.tree"))


def test_a_list_that_nobody_could_read_is_not_written(monkeypatch):
    monkeypatch.setattr(limits, "manifest_bytes", lambda: 100)
    with pytest.raises(ManifestError, match=r"the list of 4 files and folders in env has \d+ bytes: expected at most"):
        encoded(ENTRIES, "env")


def test_the_id_is_over_the_list_and_small_files_are_grouped():
    files = [Entry("file", f"env/{number}", 0o644, 0, 0, number) for number in range(600)]
    large = Entry("file", "env/large", 0o644, 0, 0, 1 << 40)
    entries = [ENTRIES[0], *files, large]
    made = manifest_of(entries, table := encoded(entries, "env"), Path("/shared"))
    assert made.format == TREE and made.path == Path("/shared/env")
    assert [len(shard.files) for shard in made.shards] == [1, 512, 1, 88]
    learned = made.shards[1].replace(files=tuple(file.replace(digest="xxh3-128:00") for file in made.shards[1].files))
    changed = made.__class__(TREE, made.schema, (made.shards[0], learned, *made.shards[2:]))
    assert changed.content_id == made.content_id
    assert manifest_of(entries, table + b" ", Path()).content_id != made.content_id
