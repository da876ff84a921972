"""split, select, merge, pack --append, info --stats on the command line: the outcome, and the exit codes."""

from __future__ import annotations

import json

import dlio
from dlio.dataset.manifest import Manifest
from dlio.errors import EXIT_DONE, SourceError, UsageError
from tests.helpers.images import make_image_folder


def test_a_split_and_a_merge(run, packed, tmp_path):
    code, out, _ = run("split", packed, "--fractions", "0.75,0.25", "--by", "class", "--names", "a,b", "--json")
    assert code == EXIT_DONE
    parts = {name: Manifest.load(tmp_path / "packed-split" / name) for name in ("a", "b")}
    assert {name: part["content_id"] for name, part in json.loads(out).items()} == {
        name: part.content_id for name, part in parts.items()
    }
    assert sum(part.num_samples for part in parts.values()) == 12
    assert run("merge", *(part.root for part in parts.values()), "-o", tmp_path / "both", "--quiet") == (
        EXIT_DONE,
        "",
        "",
    )
    assert Manifest.load(tmp_path / "both").num_samples == 12
    code, _, err = run("merge", tmp_path / "both", packed, "-o", tmp_path / "c")
    assert code == UsageError.exit_code and "in two of the data sets" in err
    assert run("split", packed, "--fractions", "0.9;0.1")[0] == UsageError.exit_code


def test_a_selection(run, packed, tmp_path):
    (tmp_path / "keys.txt").write_text("cat/0001.png\ndog/0002.png\n")
    words = ["select", packed, "-o", tmp_path / "some", "--list", tmp_path / "keys.txt"]
    assert run(*words, "--class", "cat", "--where", "label<1", "--quiet")[0] == EXIT_DONE
    assert dlio.info(tmp_path / "some")["class_counts"] == {"cat": 1, "dog": 0}
    (tmp_path / "keys.txt").write_text("cow/0.png\n")
    code, _, err = run(*words)
    assert code == SourceError.exit_code and "'cow/0.png'" in err


def test_an_append(run, photos, packed):
    make_image_folder(photos, {"owl": 3})
    code, out, _ = run("pack", photos, packed, "--append", "--dry-run", "--json")
    assert code == EXIT_DONE and json.loads(out)["samples"] == 3
    for _ in range(2):
        code, out, _ = run("pack", photos, packed, "--append", "--engine", "serial", "--json")
        assert code == EXIT_DONE and json.loads(out)["samples"] == 15
    assert run("pack", photos, packed, "--append", "--overwrite", "--engine", "serial")[0] == UsageError.exit_code


def test_numbers(run, packed):
    code, out, _ = run("info", packed, "--stats", "--quiet", "--json")
    stats = json.loads(out)["stats"]
    assert code == EXIT_DONE and stats["samples_read"] == 12
    assert f"mean                 {stats['mean'][0]:.4f}, " in run("info", packed, "--stats")[1]
