"""The digest line: no damage to a manifest gives another data set, and manifests of dlio 0.1 are still read."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import xxhash

import dlio
from dlio.cli import main
from dlio.dataset import seal
from dlio.dataset.manifest import NAME, PARTIAL_NAME, File, Manifest, Part, Shard, from_bytes, read_partial, unfinished
from dlio.dataset.schema import Schema
from dlio.errors import ManifestError
from dlio.loaders.dataset import PackedSamples
from tests.helpers.damage import flipped
from tests.helpers.manifests import as_version_1, lines_of, replace_text, unpublish, write_lines

SCHEMA = Schema.of({"image": "bytes", "label": "int64"}, ("ant", "bee"), 1)


@pytest.fixture
def packed(tmp_path: Path, photos: Path) -> Path:
    return dlio.pack(photos, tmp_path / "packed", num_shards=2, engine="serial").root


def shard(number: int) -> Shard:
    name = f"shard-{number:05d}"
    return Shard(name, 2, (File(f"{name}.rec", 60 + number, f"xxh3-128:{number:032x}"),), inputs=f"xxh3-128:{number:x}")


def made(count: int = 2) -> Manifest:
    shards = tuple(map(shard, range(count)))
    return Manifest("recordio", SCHEMA, shards, {"num_shards": count, "refused": [["a.jpg", "it is empty"]]})


def in_parts() -> Manifest:
    return replace(
        made(), shards=tuple(each.replace(nodes=(number,)) for number, each in enumerate(made().shards)), node=1
    )


def split() -> Manifest:
    """Returns a manifest as `split` writes it."""
    return replace(made(), shards=tuple(each.replace(part=Part(9, (1, 1, 4, 1))) for each in made().shards))


KINDS = pytest.mark.parametrize("kind", [made, in_parts, split], ids=lambda kind: kind.__name__)


@KINDS
def test_every_flipped_bit_of_a_manifest_is_refused(tmp_path: Path, kind: Callable[[], Manifest]) -> None:
    path = kind().save(tmp_path)
    content = bytearray(path.read_bytes())
    assert from_bytes(bytes(content), path) == kind()
    for bit in range(8 * len(content)):
        content[bit // 8] ^= 1 << bit % 8
        with pytest.raises(ManifestError, match=r"manifest\.jsonl"):
            from_bytes(bytes(content), path)
        content[bit // 8] ^= 1 << bit % 8


def test_a_flipped_bit_of_a_long_manifest_is_refused(tmp_path: Path) -> None:
    path = made(9000).save(tmp_path)
    assert path.stat().st_size > 1 << 20, "it has several blocks"
    ends = [0, 2, path.stat().st_size - 1, path.stat().st_size - 5]
    places = [*ends, *random.Random(1).sample(range(path.stat().st_size), 8)]
    for place in places:
        with flipped(path, 8 * place + place % 7), pytest.raises(ManifestError, match=str(path)):
            Manifest.load(tmp_path)
    assert len(Manifest.load(tmp_path).shards) == 9000


@KINDS
def test_every_cut_and_every_addition_is_refused(tmp_path: Path, kind: Callable[[], Manifest]) -> None:
    path = kind().save(tmp_path)
    content = path.read_bytes()
    lines = content.splitlines(keepends=True)
    without = [b"".join(lines[:number] + lines[number + 1 :]) for number in range(len(lines))]
    swapped = b"".join([lines[0], lines[2], lines[1], lines[3]])
    more = [content + end for end in (b"\n", b" ", lines[-1], lines[1], b"\0")]
    for damaged in (*(content[:size] for size in range(len(content))), *without, swapped, *more):
        with pytest.raises(ManifestError, match=str(path)):
            from_bytes(damaged, path)


def test_a_digest_line_in_a_manifest_of_version_1_is_refused(tmp_path: Path) -> None:
    path = made().save(tmp_path)
    path.write_bytes(path.read_bytes().replace(b'{"dlio":2', b'{"dlio":1'))
    with pytest.raises(ManifestError, match="line 4"):
        Manifest.load(tmp_path)


def test_a_manifest_of_fixed_bytes_is_read(tmp_path: Path) -> None:
    """Whatever changes in dlio: the digest is the XXH3 of all bytes before the last line."""
    text = b'{"dlio":2,"format":"tfrecord","schema":{},"class_names":[],"label_offset":0,"origin":{}}\n'
    digest = xxhash.xxh3_128_hexdigest(text)
    assert from_bytes(text + b'{"digest":"xxh3-128:%s"}\n' % digest.encode(), tmp_path / NAME).shards == ()


def test_the_error_says_what_was_expected_and_what_to_do(tmp_path: Path) -> None:
    path = made().save(tmp_path)
    says = path.read_text().splitlines()[-1]
    path.write_text(path.read_text().replace('"label_offset":1', '"label_offset":0'))
    with pytest.raises(ManifestError) as raised:
        Manifest.load(tmp_path)
    text = str(raised.value)
    assert text.startswith(f"{path} is damaged: its lines have the digest xxh3-128:")
    assert f"its last line says {says}: restore the file, or pack again; dlio verify --repair" in text


def test_every_flipped_bit_of_an_unfinished_manifest_costs_shards_at_most(tmp_path: Path) -> None:
    whole = made()
    whole.save(tmp_path)
    path = unpublish(tmp_path)
    content = bytearray(path.read_bytes())
    assert read_partial(tmp_path) == whole
    costs = set()
    for bit in range(8 * len(content)):
        content[bit // 8] ^= 1 << bit % 8
        try:
            found = unfinished(bytes(content), path)
        except ManifestError as error:
            assert str(path) in str(error)
        else:
            assert found is not None and replace(found, shards=()) == replace(whole, shards=())
            assert set(found.shards) <= set(whole.shards)
            costs.add(len(whole.shards) - len(found.shards))
        content[bit // 8] ^= 1 << bit % 8
    assert costs == {1, 2}, "both, if the newline between their lines is lost"


def test_an_unfinished_manifest_has_a_largest_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made().save(tmp_path)
    num_bytes = unpublish(tmp_path).stat().st_size
    monkeypatch.setenv("DLIO_MAX_MANIFEST", str(num_bytes))
    assert read_partial(tmp_path) == made()
    monkeypatch.setenv("DLIO_MAX_MANIFEST", str(num_bytes - 1))
    with pytest.raises(ManifestError, match=rf"{PARTIAL_NAME} has more than {num_bytes - 1:,} bytes"):
        read_partial(tmp_path)


def test_a_pack_goes_on_from_a_damaged_unfinished_manifest(
    tmp_path: Path, photos: Path, caplog: pytest.LogCaptureFixture
) -> None:
    how = {"num_shards": 4, "engine": "serial"}
    whole = dlio.pack(photos, tmp_path / "whole", **how)
    out = dlio.pack(photos, tmp_path / "out", **how).root
    path = unpublish(out)
    content = path.read_bytes()
    path.write_bytes(content.replace(b'"samples":', b'"samplet":', 2))
    kept = [(out / each.files[0].name).stat().st_ino for each in whole.shards[2:]]
    assert dlio.pack(photos, out, **how) == whole
    assert (out / NAME).read_bytes() == (whole.root / NAME).read_bytes()
    assert [(out / each.files[0].name).stat().st_ino for each in whole.shards[2:]] == kept
    assert f"{path}: lines are damaged: their shards are packed again" in caplog.text
    with flipped(unpublish(out), 8 * 20), pytest.raises(ManifestError, match=r"remove .*out yourself"):
        dlio.pack(photos, out, **how)


def test_an_unfinished_manifest_of_dlio_0_1_goes_on(tmp_path: Path, photos: Path) -> None:
    out = dlio.pack(photos, tmp_path / "out", num_shards=3, engine="serial").root
    content = (out / NAME).read_bytes()
    old = as_version_1(out / NAME).rename(out / PARTIAL_NAME)
    old.write_text("".join(old.read_text().splitlines(keepends=True)[:-1]))
    kept = (out / "shard-000001.tfrecord").stat().st_ino
    dlio.pack(photos, out, num_shards=3, engine="serial")
    assert (out / NAME).read_bytes() == content
    assert (out / "shard-000001.tfrecord").stat().st_ino == kept


@pytest.mark.parametrize("old", ['"label_offset":0', '"dog"', '"samples":', '"digest":"xxh3-128:'])
def test_every_verb_refuses_a_damaged_manifest(
    tmp_path: Path, photos: Path, packed: Path, old: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (packed / NAME).read_bytes()
    place = text.index(old.encode()) + len(old) - 2
    out = str(tmp_path / "out")
    verbs: list[list[str]] = [
        ["verify", str(packed)],
        ["verify", str(packed), "--seal"],
        ["info", str(packed)],
        ["convert", str(packed), out, "--format", "recordio"],
        ["stage", str(packed), out],
        ["plan", str(packed), "--nodes", "2"],
        ["split", str(packed), "-o", out, "--fractions", "0.5,0.5"],
        ["select", str(packed), "-o", out, "--class", "dog"],
        ["merge", str(packed), str(packed), "-o", out],
        ["pack", str(packed), out],
        ["pack", str(photos), str(packed), "--append"],
        ["index", str(packed), "--format", "tfrecord", "--overwrite"],
        ["report", str(packed), "-o", str(tmp_path / "x.html")],
    ]
    with flipped(packed / NAME, 8 * place):
        for words in verbs:
            assert main([*words, "--quiet"]) == 3, words
            assert f"{packed / NAME}" in capsys.readouterr().err, words
        with pytest.raises(ManifestError):
            PackedSamples(packed)
    assert not (tmp_path / "out").exists()
    assert main(["verify", str(packed), "--quiet"]) == 0


def test_all_that_writes_a_manifest_seals_it(tmp_path: Path, packed: Path, photos: Path) -> None:
    dlio.split(packed, tmp_path / "parts", fractions=[0.5, 0.5])
    dlio.select(packed, tmp_path / "cats", classes=["cat"])
    dlio.merge([tmp_path / "parts" / name for name in ("train", "val")], tmp_path / "merged")
    dlio.convert(packed, tmp_path / "converted", format="recordio", engine="serial")
    (photos / "cat" / "new.png").write_bytes(next((photos / "cat").glob("*")).read_bytes())
    dlio.stage(packed, tmp_path / "local")
    dlio.pack(photos, packed, append=True, engine="serial")
    (tmp_path / "old").mkdir()
    (packed / "shard-000000.tfrecord").rename(tmp_path / "old" / "a.tfrecord")
    dlio.index(tmp_path / "old", format="tfrecord", workers=1)
    written = sorted(tmp_path.rglob(NAME))
    assert len(written) == 8
    for path in written:
        assert Manifest.load(path.parent).digest == seal_of(path) != ""


def seal_of(path: Path) -> str:
    found: str = json.loads(path.read_text().splitlines()[-1])["digest"]
    return found


def test_a_manifest_of_dlio_0_1_is_read_with_one_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        as_version_1(made().save(tmp_path / name))
    for _ in range(3):
        assert Manifest.load(tmp_path / "a") == made()
        assert Manifest.load(tmp_path / "b").digest == ""
    assert [record.levelno for record in caplog.records] == [logging.WARNING] * 2
    assert [record.message for record in caplog.records] == [
        f"{tmp_path / name / NAME} has no digest line, so damage to it may go unnoticed: dlio verify --seal adds one"
        for name in ("a", "b")
    ]


def test_content_ids_are_those_of_dlio_0_1(tmp_path: Path) -> None:
    """They were computed by dlio 0.1; staged copies have them as names."""
    shards = tuple(
        Shard(f"shard-{n:05d}", count, (File(f"shard-{n:05d}.rec", 10 + n, f"xxh3-128:{n:032x}"),))
        for n, count in enumerate((3, 0, 2))
    )
    plain = Manifest("recordio", Schema.of({"image": "bytes", "label": "int64"}), shards, {"num_shards": 3})
    part = shards[0].replace(num_samples=2, part=Part(5, (1, 2)), nodes=(0,))
    schema = Schema.of({"frames": "bytes[]", "box": "float32[?,4]"}, ("a", "é"), -1)
    other = replace(plain, schema=schema, shards=(part, *shards[1:]))
    for found, known in ((plain, "2e2642690ee24016a71c935871e794b1"), (other, "fa66ec2e6c83cc74396735a3c85aead1")):
        assert found.content_id == known
        found.save(tmp_path)
        assert Manifest.load(tmp_path).content_id == known
        as_version_1(tmp_path / NAME)
        assert Manifest.load(tmp_path).content_id == known


@pytest.mark.parametrize("version", ["3", "0", "-2", "true", '"2"', "2.0", "null"])
def test_another_version_is_an_error_that_names_it(tmp_path: Path, version: str) -> None:
    path = made().save(tmp_path)
    replace_text(path, '{"dlio":2,', f'{{"dlio":{version},')
    with pytest.raises(ManifestError, match=r"has the version .*, this dlio reads 1 and 2: install a newer dlio"):
        Manifest.load(tmp_path)


def test_whether_a_file_is_intact_is_known_without_parsing(tmp_path: Path) -> None:
    path = made(9000).save(tmp_path)
    assert seal.is_intact(path) and seal.ends_with(path, Manifest.load(tmp_path).digest)
    for place in (3, 8, 1 << 20, path.stat().st_size - 1):
        with flipped(path, 8 * place):
            assert not seal.is_intact(path)
    write_lines(path, lines_of(path)[:-1])
    assert seal.is_intact(path)
    assert seal.is_intact(as_version_1(path))
    path.write_bytes(b"")
    assert not seal.is_intact(path)
