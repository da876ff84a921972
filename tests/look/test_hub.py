"""Croissant that mlcroissant accepts, with the digests of the files as they are, and a data card."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

import dlio
from dlio import cli
from dlio.errors import UsageError
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
