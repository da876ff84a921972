"""The manifest: its text, numbering of samples, content id, and what it refuses to read."""

from __future__ import annotations

import gc
import json
import os
import pickle
import string
from bisect import bisect_right
from dataclasses import replace
from itertools import accumulate
from pathlib import Path, PurePosixPath

import msgspec
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dlio.dataset import json_lines
from dlio.dataset import manifest as manifests
from dlio.dataset.manifest import CropReady, DecodeReady, File, Manifest, Part, Shard
from dlio.dataset.schema import IMAGE_CLASSIFICATION, Schema
from dlio.dataset.shard import checked
from dlio.errors import ManifestError, StorageError
from tests.helpers.manifests import lines_of, replace_text, unpublish, write_lines

COUNTS = st.integers(2**20, 2**62)  # of bytes: room for all samples
TEXT = st.text(max_size=12)
FILE_LETTERS = string.ascii_letters + "é猫 '\"\n-_."
FILE_NAMES = st.text(FILE_LETTERS, min_size=1, max_size=12).filter(lambda name: name.strip(".") != "")
FILES = st.builds(File, FILE_NAMES, COUNTS, TEXT)
PARTS = st.none() | st.lists(st.booleans(), max_size=9).map(lambda taken: Part.of(len(taken), np.flatnonzero(taken)))
SHARDS = st.builds(
    lambda part, **shard: Shard(**shard | ({} if part is None else {"num_samples": part.num_samples}), part=part),
    part=PARTS,
    name=FILE_NAMES,
    num_samples=st.integers(0, 10**6),
    files=st.lists(FILES, min_size=1, max_size=3).map(tuple),
    skipped=st.lists(st.tuples(TEXT, TEXT), max_size=2).map(tuple),
    inputs=TEXT,
    nodes=st.lists(st.integers(0, 9), max_size=3).map(tuple),
    crop_ready=st.none() | st.builds(CropReady, st.integers(0, 9), st.integers(0, 9), st.integers(0, 9)),
    decode_ready=st.none() | st.builds(DecodeReady, st.integers(0, 9), st.integers(0, 9)),
)
OTHER_SCHEMA = Schema.of({"frames": "bytes[]", "box": "float32[?,4]"}, ("a", "é"), -1)
SCHEMAS = st.sampled_from([IMAGE_CLASSIFICATION, OTHER_SCHEMA])
MANIFESTS = st.builds(
    Manifest,
    format=st.sampled_from(["tfrecord", "mypackage.zarr"]),
    schema=SCHEMAS,
    shards=st.lists(SHARDS, max_size=5).map(tuple),
    origin=st.dictionaries(TEXT.filter(lambda key: key != "num_shards"), TEXT | st.integers() | st.none(), max_size=3),
)


def _manifest(counts=(3, 0, 2)):
    shards = [
        Shard(f"shard-{n:05d}", count, (File(f"shard-{n:05d}.rec", 10 + n, f"xxh3-128:{n:032x}"),))
        for n, count in enumerate(counts)
    ]
    return Manifest("recordio", IMAGE_CLASSIFICATION, tuple(shards), {"num_shards": len(shards)})


@given(MANIFESTS)
def test_a_saved_manifest_is_read_back(tmp_path_factory, manifest):
    folder = tmp_path_factory.mktemp("manifest")
    path = manifest.save(folder)
    found = Manifest.load(folder)
    assert found == manifest
    assert found.root == folder
    assert found.content_id == manifest.content_id
    assert len(path.read_text().splitlines()) == len(manifest.shards) + 2
    assert [entry.name for entry in folder.iterdir()] == [manifests.NAME]


@given(MANIFESTS)
def test_manifests_survive_pickling(manifest):
    assert pickle.loads(pickle.dumps(manifest)) == manifest


@given(st.lists(st.integers(0, 4), max_size=8))
def test_samples_are_numbered_through_the_shards(counts):
    manifest = _manifest(counts)
    starts = [0, *accumulate(counts)]
    assert manifest.num_samples == starts[-1] == sum(counts)
    for index in range(manifest.num_samples):
        shard = bisect_right(starts, index) - 1
        assert manifest.locate(index) == (shard, index - starts[shard])
    for index in (-1, manifest.num_samples):
        with pytest.raises(IndexError):
            manifest.locate(index)


def test_every_line_is_json_on_its_own(tmp_path):
    lines = _manifest().save(tmp_path).read_text().splitlines()
    head, *shards, last = map(json.loads, lines)
    assert (head["dlio"], head["format"], head["schema"]) == (2, "recordio", {"image": "bytes", "label": "int64"})
    assert last == {"digest": Manifest.load(tmp_path).digest}
    assert [line["samples"] for line in shards] == [3, 0, 2]


def test_the_content_id_names_content_and_nothing_else():
    manifest = _manifest()
    same = replace(manifest, root=Path("elsewhere"), origin={"source": "other"})
    shard = manifest.shards[1]
    file = shard.files[0]
    others = [
        replace(manifest, format="tfrecord"),
        replace(manifest, schema=Schema.of({"image": "bytes", "label": "int32"})),
        replace(manifest, shards=manifest.shards[::-1]),
        replace(manifest, shards=manifest.shards[:-1]),
        *(
            replace(manifest, shards=(manifest.shards[0], shard.replace(files=(changed,)), manifest.shards[2]))
            for changed in (file.replace(digest="xxh3-128:0"), file.replace(num_bytes=1), file.replace(name="b"))
        ),
    ]
    assert same.content_id == manifest.content_id
    assert len({manifest.content_id, *(other.content_id for other in others)}) == len(others) + 1
    assert len(manifest.content_id) == 32


def _line(**changes):
    file = {"name": "a.rec", "bytes": 1, "digest": "xxh3-128:0"}
    return {"shard": "a", "samples": 1, "files": [file | changes.pop("file", {})], **changes}


@pytest.mark.parametrize(
    "line",
    [
        _line(samples=-1),
        _line(samples=1.5),
        _line(samples=True),
        _line(samples="1"),
        _line(samples=2),
        _line(samples=10**18),
        _line(samples=3, file={"name": "a.samples.npz", "bytes": 59}),
        _line(part={"of": 2, "runs": [0, 1]}),
        _line(files=[]),
        _line(files=None),
        _line(file={"bytes": -1}),
        _line(file={"bytes": None}),
        _line(file={"name": "/etc/passwd"}),
        _line(file={"name": "../other/a.rec"}),
        _line(file={"name": "a/../../b"}),
        _line(file={"name": ""}),
        _line(file={"name": "a\0b"}),
        _line(file={"name": "a\ud800b"}),
        _line(shard="a\udfff"),
        _line(nodes=[-1]),
        _line(skipped=[["only a key"]]),
        {"shard": "a"},
        [],
        None,
        7,
    ],
)
def test_a_damaged_line_is_named(line, tmp_path):
    path = _manifest().save(tmp_path)
    lines = lines_of(path)
    lines[2] = json.dumps(line)
    write_lines(path, lines)
    with pytest.raises(ManifestError, match="line 3") as raised:
        Manifest.load(tmp_path)
    assert str(path) in str(raised.value)


def test_a_file_name_may_be_other_than_utf8(tmp_path):
    """As Linux has them, and `dlio index` finds them."""
    path = _manifest().save(tmp_path)
    lines = lines_of(path)
    lines[2] = json.dumps(_line(file={"name": os.fsdecode(b"caf\xe9.rec")}))
    write_lines(path, lines)
    assert os.fsencode(Manifest.load(tmp_path).shards[1].files[0].name) == b"caf\xe9.rec"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\n",
        "{",
        "null\n",
        "[]\n",
        '"dlio"\n',
        "{}\n",
        '{"dlio": 2}\n',
        '{"dlio": 1}\n',
        '{"dlio": 3}\n',
        '{"dlio": true}\n',
        "\0\n",
        '{"dlio": 1',
    ],
)
def test_what_is_no_manifest(text, tmp_path):
    (tmp_path / manifests.NAME).write_text(text)
    with pytest.raises(ManifestError, match=r"manifest\.jsonl"):
        Manifest.load(tmp_path)


def test_bytes_that_are_no_text(tmp_path):
    (tmp_path / manifests.NAME).write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ManifestError, match="not text"):
        Manifest.load(tmp_path)


def test_a_manifest_cut_at_a_line_is_noticed(tmp_path):
    path = _manifest().save(tmp_path)
    lines = lines_of(path)
    path.write_text("".join(f"{line}\n" for line in lines))
    with pytest.raises(ManifestError, match="its last line, which should hold this digest, is missing"):
        Manifest.load(tmp_path)
    write_lines(path, lines[:-1])
    with pytest.raises(ManifestError, match="names 3 shards and lists 2"):
        Manifest.load(tmp_path)


def test_no_manifest_says_what_to_do(tmp_path):
    with pytest.raises(ManifestError, match="does not exist; give the folder"):
        Manifest.load(tmp_path)
    (tmp_path / "broken").symlink_to("nowhere")
    with pytest.raises(ManifestError, match="broken is a link to what does not exist: give the folder"):
        Manifest.load(tmp_path / "broken")
    for name in "train", "val":
        (tmp_path / name).mkdir()
        _manifest().save(tmp_path / name)
    with pytest.raises(ManifestError, match=r"does not exist; give one of the data sets in it: 'train', 'val'$"):
        Manifest.load(tmp_path)
    (tmp_path / manifests.PARTIAL_NAME).touch()
    with pytest.raises(ManifestError, match="still being packed"):
        Manifest.load(tmp_path)


def test_a_folder_in_its_place_is_a_storage_error(tmp_path):
    (tmp_path / manifests.NAME).mkdir()
    with pytest.raises(StorageError, match=r"manifest\.jsonl"):
        Manifest.load(tmp_path)


@pytest.mark.parametrize("cut", range(0, 60, 7))
def test_a_partial_manifest_keeps_whole_lines(cut, tmp_path):
    manifest = _manifest()
    manifest.save(tmp_path)
    path = unpublish(tmp_path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size - cut])
    found = manifests.read_partial(tmp_path)
    assert found is not None
    assert found.shards == manifest.shards[: 3 if cut == 0 else 2]


def test_no_partial_manifest(tmp_path):
    assert manifests.read_partial(tmp_path) is None
    (tmp_path / manifests.PARTIAL_NAME).write_text('{"dlio": 1')
    assert manifests.read_partial(tmp_path) is None


def test_a_failed_save_leaves_nothing(tmp_path):
    (tmp_path / manifests.NAME).mkdir()
    with pytest.raises(StorageError, match=r"manifest\.jsonl"):
        _manifest().save(tmp_path)
    assert [entry.name for entry in tmp_path.iterdir()] == [manifests.NAME]


@pytest.mark.parametrize(
    "damage",
    [
        ('"origin":{}', '"origin":null'),
        ('"origin":{}', '"origin":[1]'),
        ('"class_names":[]', '"class_names":[1]'),
        ('"class_names":[]', '"class_names":"ab"'),
        ('"shard":"a"', '"shard":"../../a"'),
        ('"origin":{}', '"origin":' + "[" * 100_000),
    ],
    ids=lambda damage: damage[1][:30],
)
def test_a_manifest_with_the_wrong_kind_of_value_is_refused(tmp_path, damage):
    shard = Shard("a", 1, (File("a.tfrecord", 1, "xxh3-128:0"),))
    path = Manifest("tfrecord", IMAGE_CLASSIFICATION, (shard,)).save(tmp_path)
    replace_text(path, *damage)
    with pytest.raises(ManifestError, match=r"manifest\.jsonl, line [12]"):
        Manifest.load(tmp_path)


def test_the_content_id_tells_what_labels_mean():
    shard = Shard("a", 1, (File("a.tfrecord", 1, "xxh3-128:0"),))
    plain = Manifest("tfrecord", IMAGE_CLASSIFICATION, (shard,))
    named = replace(plain, schema=Schema(IMAGE_CLASSIFICATION.fields, ("ant", "bee")))
    others = [
        named,
        replace(plain, schema=Schema(IMAGE_CLASSIFICATION.fields, ("bus", "car"))),
        replace(plain, schema=Schema(IMAGE_CLASSIFICATION.fields, (), label_offset=1)),
        replace(plain, shards=(shard.replace(num_samples=2),)),
    ]
    assert len({manifest.content_id for manifest in [plain, *others]}) == 5
    assert replace(named, origin={"path": "elsewhere"}, root=Path("there")).content_id == named.content_id


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('"samples":3', '"samples":100000000000000000000000000', "2: Expected `int` <= 9223372036854775807"),
        ('"samples":3', f'"samples":{2**63 - 2}', "2: 9,223,372,036,854,775,806 records, and .* room for 10"),
        ('"bytes":10', f'"bytes":{2**63}', "2: Expected `int` <= 9223372036854775807"),
        ('"label_offset":0', f'"label_offset":{10**30}', "1: expected a whole number"),
        ('"origin"', '"node":-1,"origin"', "1: Expected `int` >= 0"),
    ],
)
def test_numbers_that_no_64_bits_hold_are_refused(tmp_path, old, new, problem):
    path = _manifest().save(tmp_path)
    replace_text(path, old, new)
    with pytest.raises(ManifestError, match=f"line {problem}"):
        Manifest.load(tmp_path)


def test_a_part_knows_its_node_and_its_shards(tmp_path):
    whole = _manifest()
    assert whole.shards_here == whole.shards
    places = zip(whole.shards, [(0,), (1, 2), (2, 0)], strict=True)
    shards = tuple(shard.replace(nodes=nodes) for shard, nodes in places)
    replace(whole, shards=shards, node=2).save(tmp_path)
    part = Manifest.load(tmp_path)
    assert part.node == 2
    assert part.shards_here == shards[1:]
    assert part.content_id == whole.content_id


def test_a_line_of_two_objects_is_refused(tmp_path):
    path = tmp_path / "manifest.jsonl"
    header = '{"dlio":1,"format":"tfrecord","schema":{"image":"bytes"},"class_names":[],"label_offset":0,"origin":{}}'
    path.write_text(header + "{}\n")
    with pytest.raises(ManifestError, match=f"line 1: Extra data: .* column {len(header) + 1} "):
        Manifest.load(tmp_path)
    path.write_text(f"  {header}\r\n\r\n")
    assert Manifest.load(tmp_path).num_samples == 0
    path.write_bytes(header.encode() + b'\r{"shard":"s"}\n')
    with pytest.raises(ManifestError, match="line 1: Extra data"):
        Manifest.load(tmp_path)


def test_what_content_ids_are_made_of_is_as_json_writes_it():
    for name in [*map(chr, [*range(0x180), 0x2028, 0xD800, 0xDCFF, 0xFEFF, 0x1F600]), "\\u007f", '", "']:
        values = [(2**63 - 1, [name])]
        assert json_lines.dense(values) == json.dumps(values).encode()


@pytest.mark.parametrize("number", [2, 12000, 30000])
def test_a_damaged_line_far_down_is_named_by_its_number(number, tmp_path):
    head = {"dlio": 1, "format": "tfrecord", "schema": {}, "class_names": [], "label_offset": 0, "origin": {}}
    shard = {"shard": "s", "samples": 1, "files": [{"name": "s.tfrecord", "bytes": 1, "digest": "xxh3-128:0"}]}
    lines = [json_lines.dump(line).encode() for line in [head, *[shard] * 29999]]
    assert len(manifests.from_bytes(b"".join(lines), tmp_path / manifests.NAME).shards) == 29999
    lines[number - 1] = b"{\n"
    with pytest.raises(ManifestError, match=f"line {number}:"):
        manifests.from_bytes(b"".join(lines), tmp_path / manifests.NAME)


@given(
    st.lists(st.text('ab./\\"é \0', max_size=5), min_size=1, max_size=3),
    st.sampled_from([False, True]),
)
@example(["a", "\0"], True)  # an escape among names that need none
def test_names_stay_inside_the_folder_however_they_are_written(names, is_ascii):
    line = {"shard": "s", "samples": 1, "files": [{"name": name, "bytes": 25, "digest": "d"} for name in names]}
    text = json.dumps(line, ensure_ascii=is_ascii).encode()
    shards = [msgspec.json.decode(text, type=Shard)]
    inside = all(PurePosixPath(n).parts and not {"..", "/", "//"} & {*PurePosixPath(n).parts} for n in names)
    if inside and "\0" not in "".join(names):
        (found,) = checked(shards, text)
        assert [file.name for file in found.files] == [str(PurePosixPath(name)) for name in names]
    else:
        with pytest.raises(ValueError, match="points outside"):
            checked(shards, text)


@pytest.mark.parametrize("skipped", [0, 3 << 20])
def test_lines_longer_than_a_block_are_read(tmp_path, skipped):
    whole = _manifest()
    shards = tuple(shard.replace(skipped=(("x" * skipped, "long"),)) for shard in whole.shards)
    replace(whole, shards=shards).save(tmp_path)
    assert Manifest.load(tmp_path).shards == shards


def test_the_garbage_collector_goes_on_after_an_error(tmp_path):
    assert gc.isenabled()
    with pytest.raises(ManifestError):
        manifests.from_bytes(b'{"dlio":2}\n{', tmp_path)
    assert gc.isenabled()


def test_the_garbage_collector_does_not_visit_what_was_loaded():
    gc.disable()
    try:
        with json_lines.uncollected():
            kept: list[list[int]] = [[] for _ in range(200_000)]
        assert gc.get_count()[0] < len(kept) // 2
    finally:
        gc.enable()
