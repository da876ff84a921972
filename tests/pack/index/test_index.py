"""`dlio index`: shards of other tools become a data set where they are, and nothing of them is changed."""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import closing
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dlio
from dlio import formats
from dlio.cli import main
from dlio.dataset.manifest import NAME, PARTIAL_NAME
from dlio.dataset.sample_table import SUFFIX
from dlio.dataset.schema import Schema
from dlio.errors import CorruptRecordError, SourceError, StorageError, UsageError
from dlio.pack.index import CLAIMS, index, names
from dlio.sources import image_folder, packed
from tests.helpers.adopted import JPEGS, PAIR, adopt, photo_records, write_records
from tests.helpers.lazy import Lazy
from tests.helpers.packing import content, samples
from tests.helpers.rounds import ROUNDS
from tests.helpers.users import unprivileged

wds = Lazy("webdataset")
pytestmark = pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # webdataset leaves its tars open


class TestFinding:
    """Which files are shards, and of one set."""

    def test_shards_of_any_name_in_numeric_order(self, tmp_path):
        for start, name in [(4, "part-r-10"), (0, "part-r-1"), (2, "part-r-9")]:
            write_records(tmp_path / name, "tfrecord", photo_records(start, start + 2), PAIR)
        (tmp_path / "_SUCCESS").write_bytes(b"")
        (tmp_path / "README.md").write_text("mine")
        manifest, found = adopt(tmp_path, "tfrecord")
        assert [shard.name for shard in manifest.shards] == ["part-r-1", "part-r-9", "part-r-10"]
        assert found == photo_records(0, 6)

    def test_an_index_is_read_and_staged_too(self, tmp_path):
        dlio_shard = write_records(tmp_path / "train.tfrecord", "tfrecord", photo_records(0, 3), PAIR)
        with closing(formats.load("tfrecord").Reader(dlio_shard, Schema.of(PAIR))) as reader:
            offsets = [reader.locate(number)[1] for number in range(3)] + [dlio_shard.stat().st_size]
        lines = [f"{a} {b - a}\n" for a, b in pairwise(offsets)]
        (tmp_path / "train.idx").write_text("".join(lines))
        manifest, _ = adopt(tmp_path, "tfrecord")
        assert [file.name for file in manifest.shards[0].files] == [
            "train.tfrecord",
            "train.idx",
            f".dlio-index/train.tfrecord{SUFFIX}",
        ]

    def test_shards_without_index_get_a_hidden_one_for_readers(self, tmp_path):
        shard_names = ["train.tfrecord-00000-of-00002", "train.tfrecord-00001-of-00002"]
        for number, name in enumerate(shard_names):
            write_records(tmp_path / name, "tfrecord", photo_records(number, number + 3), PAIR)
        _, found = adopt(tmp_path, "tfrecord")
        assert found[:3] == photo_records(0, 3)
        assert [fields for _, fields in found[3:]] == [fields for _, fields in photo_records(1, 4)]
        assert sorted(path.name for path in tmp_path.glob("train*")) == shard_names
        (tmp_path / ".dlio-index" / f"{shard_names[1]}.idx").write_text("0 5\n")
        with pytest.raises(CorruptRecordError, match=r"00001-of-00002\.idx: it does not match .*: delete it"):
            formats.load("tfrecord").Reader(tmp_path / shard_names[1], Schema.of(PAIR))
        index(tmp_path, format="tfrecord", overwrite=True, workers=1)
        assert samples(tmp_path) == found

    def test_several_sets_are_never_mixed(self, tmp_path):
        for name, start in [("train-00000-of-00002", 0), ("train-00001-of-00002", 2), ("validation-00000-of-00001", 4)]:
            write_records(tmp_path / name, "tfrecord", photo_records(start, start + 2), PAIR)
        before = content(tmp_path)
        with pytest.raises(UsageError, match=r"several sets .*train-00000-of-00002 \(2\), validation.*--match"):
            index(tmp_path, format="tfrecord")
        assert content(tmp_path) == before
        _, found = adopt(tmp_path, "tfrecord", match="train-*")
        assert found == photo_records(0, 4)

    def test_a_set_with_missing_parts_is_refused(self, tmp_path):
        for number in (0, 3):
            write_records(tmp_path / f"train-{number:05d}-of-00004", "tfrecord", photo_records(number, 4), PAIR)
        with pytest.raises(SourceError, match="holds 2 of 4 shards of train, without 1, 2"):
            index(tmp_path, format="tfrecord")
        _, found = adopt(tmp_path, "tfrecord", match="*")
        assert len(found) == 5

    @pytest.mark.parametrize("name", names())
    def test_an_empty_folder_and_a_missing_one(self, tmp_path, name):
        (tmp_path / "notes.txt").write_text("none of these")
        with pytest.raises(SourceError, match="holds no shards"):
            index(tmp_path, format=name)
        for path in ("none", "notes.txt"):
            with pytest.raises(UsageError, match="is not a folder"):
                index(tmp_path / path, format=name)

    @pytest.mark.parametrize("data", [b"", b"half", b"\x1f\x8b\x08\0 compressed as a whole"])
    def test_a_file_that_is_only_called_a_shard_is_named(self, tmp_path, data):
        for name in ("train-00001-of-00002", "b.tfrecord"):
            write_records(tmp_path / "train-00000-of-00002", "tfrecord", photo_records(0, 2), PAIR)
            (tmp_path / name).write_bytes(data)
            with pytest.raises(CorruptRecordError, match=f"{name}.* has the name of a shard, but"):
                index(tmp_path, format="tfrecord")
            (tmp_path / name).unlink()

    def test_a_shard_cut_short_is_named_and_nothing_is_left(self, tmp_path):
        for number in range(3):
            path = write_records(tmp_path / f"part-{number}", "tfrecord", photo_records(number, number + 2), PAIR)
        path.write_bytes(path.read_bytes()[:-5])
        before = content(tmp_path)
        with pytest.raises(CorruptRecordError, match=r"part-2, record 1, offset \d+: .*cut off"):
            index(tmp_path, format="tfrecord", workers=2)
        assert content(tmp_path) == before

    def test_a_folder_of_links_to_shards_that_are_read_only(self, tmp_path):
        (tmp_path / "theirs").mkdir()
        (tmp_path / "mine").mkdir()
        write_records(tmp_path / "theirs/val.tfrecord", "tfrecord", photo_records(0, 3), PAIR)
        (tmp_path / "mine/val.tfrecord").symlink_to("../theirs/val.tfrecord")
        _, found = adopt(tmp_path / "mine", "tfrecord")
        assert found == photo_records(0, 3)
        assert [path.name for path in (tmp_path / "theirs").iterdir()] == ["val.tfrecord"]


class TestDataSets:
    """Folders that are data sets already."""

    def test_indexing_twice_needs_overwrite_and_gives_the_same(self, tmp_path):
        write_records(tmp_path / "a.tfrecord", "tfrecord", photo_records(0, 3), PAIR)
        adopt(tmp_path, "tfrecord")
        before = content(tmp_path)
        with pytest.raises(UsageError, match=r"has been indexed.*--overwrite"):
            index(tmp_path, format="tfrecord")
        with pytest.raises(SourceError, match=r"holds no shards .* that match .b"):
            index(tmp_path, format="tfrecord", overwrite=True, match="b*")
        assert content(tmp_path) == before
        for number in (1, 2):
            index(tmp_path, format="tfrecord", overwrite=True)
            after = {name: data for name, data in content(tmp_path).items() if name != NAME}
            assert sorted(after.values()) == sorted(data for name, data in before.items() if name != NAME)
            assert [name for name in after if name.endswith(".npz")] == [f".dlio-index/{number}/a.tfrecord.samples.npz"]
            assert main(["verify", str(tmp_path), "--quiet"]) == 0

    @pytest.mark.parametrize("moment", ["started", "report", "damaged"])
    def test_the_old_index_stays_until_the_new_one_is_whole(self, tmp_path, moment):
        for name in "01":
            write_records(tmp_path / f"{name}.tfrecord", "tfrecord", photo_records(0, 3), PAIR)
        _, expected = adopt(tmp_path, "tfrecord")
        before = content(tmp_path)
        if moment == "damaged":
            data = (tmp_path / "1.tfrecord").read_bytes()
            (tmp_path / "1.tfrecord").write_bytes(data[:-30])
            with pytest.raises(CorruptRecordError, match=r"1\.tfrecord"):
                index(tmp_path, format="tfrecord", overwrite=True, workers=1)
            (tmp_path / "1.tfrecord").write_bytes(data)
            assert content(tmp_path) == before
        else:
            code = "import os, sys; from dlio.pack.index import index; end = lambda *_: os.kill(os.getpid(), 9); "
            code += "index(sys.argv[1], format='tfrecord', workers=1, overwrite=True, **{sys.argv[2]: end})"
            assert subprocess.run([sys.executable, "-c", code, tmp_path, moment], check=False).returncode == -9
        assert samples(tmp_path) == expected and main(["verify", str(tmp_path), "--quiet"]) == 0
        index(tmp_path, format="tfrecord", overwrite=True)
        assert len(content(tmp_path)) == len(before)

    def test_of_two_at_once_the_second_is_told(self, tmp_path):
        write_records(tmp_path / "a.tfrecord", "tfrecord", photo_records(0, 3), PAIR)

        def index_too(num_bytes: int, num_shards: int) -> None:
            assert (num_bytes, num_shards) == ((tmp_path / "a.tfrecord").stat().st_size, 1)
            with pytest.raises(StorageError, match=rf"another dlio index of {tmp_path} is under way, by process"):
                index(tmp_path, format="tfrecord", workers=1)

        index(tmp_path, format="tfrecord", workers=1, started=index_too)
        assert sorted(path.name for path in tmp_path.iterdir()) == [".dlio-index", "a.tfrecord", NAME]
        assert main(["verify", str(tmp_path), "--quiet"]) == 0

    @pytest.mark.parametrize("moment", ["started", "report"])
    def test_what_a_killed_one_left_is_removed_by_the_next(self, tmp_path, moment):
        write_records(tmp_path / "a.tfrecord", "tfrecord", photo_records(0, 3), PAIR)
        code = "import os, sys; from dlio.pack.index import index; "
        code += "index(sys.argv[1], format='tfrecord', workers=1, **{sys.argv[2]: lambda *_: os.kill(os.getpid(), 9)})"
        assert subprocess.run([sys.executable, "-c", code, tmp_path, moment], check=False).returncode == -9
        assert (tmp_path / CLAIMS).is_dir()
        with pytest.raises(SourceError, match="holds no shards"):
            index(tmp_path, format="tfrecord", match="b*")
        assert not (tmp_path / CLAIMS).exists()
        index(tmp_path, format="tfrecord")
        assert sorted(path.name for path in tmp_path.iterdir()) == [".dlio-index", "a.tfrecord", NAME]

    def test_what_dlio_has_packed_needs_no_index(self, photos, tmp_path):
        dlio.pack(image_folder(photos), tmp_path / "out", engine="serial")
        before = content(tmp_path / "out")
        for overwrite in (False, True):
            with pytest.raises(UsageError, match="needs no index"):
                index(tmp_path / "out", format="tfrecord", overwrite=overwrite)
        (tmp_path / "out" / NAME).rename(tmp_path / "out" / PARTIAL_NAME)
        with pytest.raises(UsageError, match="is being packed"):
            index(tmp_path / "out", format="tfrecord")
        (tmp_path / "out" / PARTIAL_NAME).rename(tmp_path / "out" / NAME)
        assert content(tmp_path / "out") == before

    @pytest.mark.parametrize("name", formats.names())
    def test_a_lost_manifest_is_made_again_from_the_shards(self, photos, tmp_path, name):
        out = tmp_path / "out"
        dlio.pack(image_folder(photos), out, format=name, num_shards=3, engine="serial")
        before = samples(out)
        (out / NAME).unlink()
        _, found = adopt(out, name)
        assert [fields for _, fields in found] == [fields for _, fields in before]
        if name in ("tfrecord", "hdf5", "lmdb"):
            assert [key for key, _ in found] == [key for key, _ in before]

    def test_pack_with_overwrite_never_removes_shards_of_others(self, photos, tmp_path):
        (tmp_path / "theirs").mkdir()
        write_records(tmp_path / "theirs/a.tfrecord", "tfrecord", photo_records(0, 3), PAIR)
        adopt(tmp_path / "theirs", "tfrecord")
        before = content(tmp_path / "theirs")
        with pytest.raises(UsageError, match="shards that other tools made, which dlio does not remove"):
            dlio.pack(image_folder(photos), tmp_path / "theirs", overwrite=True, engine="serial")
        assert content(tmp_path / "theirs") == before

    def test_it_can_be_converted(self, tmp_path):
        (tmp_path / "theirs").mkdir()
        write_records(tmp_path / "theirs/a.tfrecord", "tfrecord", photo_records(0, 6), PAIR)
        _, found = adopt(tmp_path / "theirs", "tfrecord")
        dlio.pack(packed(tmp_path / "theirs"), tmp_path / "out", format="webdataset", engine="serial")
        assert samples(tmp_path / "out") == found


class TestKeys:
    """Keys are distinct in the whole data set."""

    @settings(max_examples=10 * ROUNDS)
    @given(st.lists(st.lists(st.sampled_from(["", "a", "b", "part/1", "é\0"]), max_size=4), min_size=1, max_size=3))
    def test_the_first_record_of_a_key_keeps_it(self, tmp_path_factory, shards):
        root = tmp_path_factory.mktemp("keys")
        for number, keys in enumerate(shards):
            records = [(key, {"image": b"x", "label": 1}) for key in keys] or [("only", {"image": b"x", "label": 1})]
            write_records(root / f"part {number}", "tfrecord", records, PAIR)
        _, found = adopt(root, "tfrecord")
        seen: set[str] = set()
        for (key, _), (shard, number, own) in zip(found, _places(shards), strict=True):
            expected = own.replace("\0", "\\x00")
            assert key == (expected if expected and expected not in seen else f"part {shard}/{number:06d}")
            seen.add(expected)
        assert len({key for key, _ in found}) == len(found)

    def test_shards_that_all_count_from_zero(self, tmp_path):
        with wds.ShardWriter(str(tmp_path / "set-%02d.tar"), maxcount=2, verbose=0) as writer:
            for number in range(6):
                writer.write({"__key__": f"{number % 2:04d}", "jpg": JPEGS[number], "cls": number})
        _, found = adopt(tmp_path, "webdataset")
        assert [key for key, _ in found] == [
            *("0000", "0001", "set-01.tar/000000", "set-01.tar/000001", "set-02.tar/000000", "set-02.tar/000001")
        ]
        assert [fields["label"] for _, fields in found] == list(range(6))


def _places(shards: list[list[str]]) -> list[tuple[int, int, str]]:
    return [(shard, number, key) for shard, keys in enumerate(shards) for number, key in enumerate(keys or ["only"])]


class TestCommandLine:
    """The verb `index`."""

    def test_it_indexes_and_reports(self, tmp_path, capsys):
        write_records(tmp_path / "a.tfrecord", "tfrecord", photo_records(0, 3), PAIR)
        assert main(["index", str(tmp_path), "--format", "tfrecord", "--json"]) == 0
        report = json.loads(capsys.readouterr().out)
        assert (report["samples"], report["schema"], report["shards"]) == (3, PAIR, 1)
        assert main(["info", str(tmp_path)]) == 0

    def test_options(self, tmp_path):
        write_records(tmp_path / "a.tfrecord", "tfrecord", photo_records(0, 3), PAIR)
        command = ["index", str(tmp_path), "--format", "tfrecord", "--quiet"]
        assert main([*command, "--match", "b*"]) == 3
        assert main([*command, "--match", "a*", "--schema", '{"image": "bytes", "label": "int64"}']) == 0
        assert main(command) == 2
        assert main([*command, "--overwrite", "--workers", "2"]) == 0

    @pytest.mark.parametrize("schema", ["", "[]", "{}", '{"image": "picture"}', '{"a b": "bytes"}', "nan"])
    def test_a_schema_that_is_none(self, tmp_path, schema, capsys):
        assert main(["index", str(tmp_path), "--format", "tfrecord", "--schema", schema]) == 2
        assert "is not a schema such as '{" in capsys.readouterr().err

    def test_a_folder_that_may_only_be_read(self, open_tmp, tmp_path, capsys):
        write_records(open_tmp / "a.tfrecord", "tfrecord", photo_records(0, 3), PAIR)
        open_tmp.chmod(0o555)
        with unprivileged():
            assert main(["index", str(open_tmp), "--format", "tfrecord", "--workers", "1"]) == 4
        said = f"dlio: cannot write to {open_tmp}: Permission denied: if the shards are read-only, make a folder"
        assert capsys.readouterr().err.startswith(said)
        assert [path.name for path in open_tmp.iterdir()] == ["a.tfrecord"]
