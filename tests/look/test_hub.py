"""Croissant that mlcroissant accepts, with the digests of the files as they are, and a data card."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

import dlio
from dlio import cli
from dlio.errors import CorruptRecordError, StorageError, UsageError
from dlio.look.hub import About, card, croissant
from tests.helpers.images import make_image_folder

ABOUT = About(
    "Cats & 'dogs'",
    "Photos of pets.",
    "https://creativecommons.org/licenses/by/4.0/",
    "https://example.org",
    "2026-11-24",
)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    make_image_folder(tmp_path / "photos", {"cat": 5, "dog": 7})
    return tmp_path / "photos"


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of rdflib
@pytest.mark.parametrize("how", ["tfrecord", "webdataset", "index"])
def test_mlcroissant_accepts_it_and_the_digests_are_those_of_the_files(photos, tmp_path, how, caplog):
    mlcroissant = pytest.importorskip("mlcroissant")
    if how == "index":
        found = dlio.index(photos)
    else:
        found = dlio.pack(photos, tmp_path / "packed", format=how, num_shards=2, engine="serial")
    read: list[int] = []
    (tmp_path / "croissant.json").write_text(json.dumps(croissant(found.root, ABOUT, read.append)))
    dataset = mlcroissant.Dataset(str(tmp_path / "croissant.json"))  # raises on errors, logs warnings
    said = [line for record in caplog.records for line in record.message.splitlines() if line.startswith("  -")]
    assert len(said) == 1 and "citeAs" in said[0], said  # a paper is recommended
    assert dataset.metadata.name == ABOUT.name and "12 samples" in dataset.metadata.description
    classes = [{name.rpartition("/")[2]: value for name, value in row.items()} for row in dataset.records("classes")]
    assert [(row["label"], str(row["name"]), row["samples"]) for row in classes] == [(0, "cat", 5), (1, "dog", 7)]
    files = {each.name: each.sha256 for each in dataset.metadata.distribution}
    assert {name: hashlib.sha256((found.root / name).read_bytes()).hexdigest() for name in files} == files
    assert len(files) == (15 if how == "index" else 1 + sum(len(shard.files) for shard in found.shards))
    assert sum(read) == sum((found.root / name).stat().st_size for name in files)


def test_the_card_has_license_counts_and_digests(photos, tmp_path, capsys):
    found = dlio.pack(photos, tmp_path / "packed", engine="serial")
    text = card(found, ABOUT)
    assert text.startswith(f"---\nlicense: {ABOUT.license}\npretty_name: 'Cats & ''dogs'''\n---\n\n# Cats & 'dogs'\n")
    for words in ("Photos of pets.", "| samples | 12 |", "| cat | 5 |", "| dog | 7 |", found.content_id):
        assert words in text
    assert dlio.Manifest.load(found.root).digest in card(found.root, About())
    words = ["--name", ABOUT.name, "--description", ABOUT.description, "--license", ABOUT.license, "--url", ABOUT.url]
    assert cli.main(["info", str(found.root), "--card", *words]) == 0
    assert capsys.readouterr().out == card(found.root, ABOUT)
    assert cli.main(["info", str(found.root), "--croissant", *words, "--published", ABOUT.published, "--quiet"]) == 0
    assert json.loads(capsys.readouterr().out) == croissant(found.root, ABOUT)


def test_what_is_not_said_is_asked_for(photos, tmp_path):
    found = dlio.pack(photos, tmp_path / "packed", engine="serial")
    with pytest.raises(UsageError, match="give --description, --license, --url, --published"):
        croissant(found, About())


@pytest.mark.parametrize("pipe", [False, True])
def test_a_file_that_changed_since_it_was_indexed_is_not_described(photos, pipe):
    """A pipe in its place would be waited for."""
    found = dlio.index(photos)
    described = croissant(found.root, ABOUT)["description"]
    changed = sorted((photos / "cat").iterdir())[0]
    changed.unlink() if pipe else changed.write_bytes(changed.read_bytes()[:-1])
    if pipe:
        os.mkfifo(changed)
    with pytest.raises(CorruptRecordError, match=f"{changed.name}.*when it was indexed"):
        croissant(found.root, ABOUT)
    for text in (card(found.root, ABOUT), described):
        assert "digest of each" not in text and "its digest" not in text


def test_a_pipe_in_place_of_a_shard_is_not_waited_for(photos, tmp_path):
    found = dlio.pack(photos, tmp_path / "packed", engine="serial")
    shard = found.root / found.shards[0].files[0].name
    shard.unlink()
    os.mkfifo(shard)
    with pytest.raises(StorageError, match="not a regular file"):
        croissant(found.root, ABOUT)


def test_words_for_a_description_are_not_ignored(photos, tmp_path, capsys):
    root = str(dlio.pack(photos, tmp_path / "packed", engine="serial").root)
    assert cli.main(["info", root, "--license", "MIT"]) == 2
    assert "give --croissant or --card" in capsys.readouterr().err
    assert cli.main(["info", root, "--card", "--croissant"]) == 2
    assert "not allowed with" in capsys.readouterr().err
