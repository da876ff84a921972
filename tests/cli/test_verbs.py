"""The verbs: what they do is checked through the library; exit codes; reports."""

from __future__ import annotations

import json
import re
import sys

import pytest

import dlio
from dlio import formats
from dlio.dataset.manifest import NAME, Manifest


class TestPack:
    @pytest.mark.parametrize("name", formats.names())
    def test_packs_each_format(self, run, photos, tmp_path, name):
        code, out, err = run("pack", photos, tmp_path / "out", "--format", name, "--workers", 1)
        assert (code, err) == (0, "")
        manifest = Manifest.load(tmp_path / "out")
        assert (manifest.format, manifest.num_samples) == (name, 12)
        assert manifest.content_id in out

    def test_options_reach_the_library(self, run, photos, tmp_path):
        words = "--format recordio --num-shards 3 --shuffle 5 --label-offset 1 --engine serial --source imagefolder"
        assert run("pack", photos, tmp_path / "out", *words.split())[0] == 0
        expected = dlio.pack(
            dlio.sources.image_folder(photos),
            tmp_path / "other",
            format="recordio",
            num_shards=3,
            shuffle=5,
            label_offset=1,
            engine="serial",
        )
        assert Manifest.load(tmp_path / "out") == expected

    def test_a_size_gives_the_number_of_shards(self, run, photos, tmp_path):
        assert run("pack", photos, tmp_path / "out", "--format", "tfrecord", "--shard-size", "2KiB")[0] == 0
        total = sum(path.stat().st_size for path in photos.rglob("*.png"))
        assert len(Manifest.load(tmp_path / "out").shards) == -(-total // 2048)

    def test_a_list_with_a_root(self, run, photos, tmp_path):
        (tmp_path / "list.csv").write_text("path,label\ncat/0001.png,4\ndog/0002.png,9\n")
        code, _, _ = run("pack", tmp_path / "list.csv", tmp_path / "out", "--format", "webdataset", "--root", photos)
        assert code == 0
        assert Manifest.load(tmp_path / "out").num_samples == 2

    def test_options_of_the_source(self, run, photos, tmp_path):
        (tmp_path / "list.csv").write_text("name,a,b\ncat/0001.png,4,5\ndog/0002.png,9,6\n")
        options = ["--option", "path_column=name", "--option", "label_columns=b", "--root", photos]
        assert run("pack", tmp_path / "list.csv", tmp_path / "out", "--format", "tfrecord", *options)[0] == 0
        assert Manifest.load(tmp_path / "out").schema.types() == {"image": "bytes", "label": "int64"}

    def test_json_is_one_object(self, run, photos, tmp_path):
        code, out, _ = run("pack", photos, tmp_path / "out", "--format", "tfrecord", "--json")
        report = json.loads(out)
        assert code == 0
        assert report["samples"] == 12
        assert report["content_id"] == Manifest.load(tmp_path / "out").content_id

    def test_quiet_prints_nothing(self, run, photos, tmp_path):
        assert run("pack", photos, tmp_path / "out", "--format", "tfrecord", "--quiet") == (0, "", "")

    def test_a_dry_run_writes_nothing(self, run, photos, tmp_path):
        code, out, _ = run("pack", photos, tmp_path / "out", "--format", "tfrecord", "--num-shards", 2, "--dry-run")
        assert code == 0
        assert "shard-000001" in out
        assert not (tmp_path / "out").exists()

    def test_a_dry_run_tells_the_size_and_no_content_id(self, run, photos, tmp_path):
        _, out, _ = run("pack", photos, tmp_path / "out", "--format", "tfrecord", "--dry-run", "--json")
        report = json.loads(out)
        assert report["bytes"] == sum(path.stat().st_size for path in photos.rglob("*.png"))
        assert (report["samples"], report["shards"]) == (12, 1)
        assert "content_id" not in report

    def test_skipped_samples_are_listed_and_the_code_is_1(self, run, photos, tmp_path):
        (photos / "cat/bad.png").write_bytes(b"no")
        command = ["pack", photos, tmp_path / "out", "--format", "tfrecord", "--on-error", "skip"]
        for _ in range(2):
            code, out, err = run(*command)
            assert code == 1
            assert "dlio: skipped 'cat/bad.png': it is not an image: " in err
            assert "--on-error" not in err
            assert re.search(r"skipped +1\n", out)

    def test_overwrite(self, run, photos, packed):
        code, _, err = run("pack", photos, packed, "--format", "recordio")
        assert code == 2
        assert "--overwrite" in err
        assert run("pack", photos, packed, "--format", "recordio", "--overwrite")[0] == 0
        assert Manifest.load(packed).format == "recordio"


class TestExitCodes:
    def test_0_done(self, run, packed):
        assert run("verify", packed)[0] == 0

    def test_1_damaged(self, run, packed):
        file = packed / "shard-000000.tfrecord"
        file.write_bytes(file.read_bytes()[:-1] + b"\0")
        code, out, err = run("verify", packed, "--workers", 1)
        assert code == 1
        assert f"dlio: damaged: shard shard-000000, {file}" in err
        assert re.search(r"damaged +1 file, 1 record\n", out)

    @pytest.mark.parametrize(
        "words",
        [
            "fly",
            "pack",
            "pack {photos} {out} --format floppy",
            "pack {photos} {out} --quality 50",
            "pack {photos} {out} --encoding png --quality 50",
            "pack {photos} {out} --encoding png --crop-ready",
            "pack {photos} {out} --format tfrecord --workers 0",
            "pack {photos} {out} --format tfrecord --workers many",
            "pack {photos} {out} --format tfrecord --shard-size big",
            "pack {photos} {out} --format tfrecord --shard-size 1M --num-shards 2",
            "pack {photos} {out} --format tfrecord --num-shards 0",
            "pack {photos} {out} --format tfrecord --num-shards 99",
            "pack {photos} {out} --format tfrecord --shuffle -1",
            "pack {photos} {out} --format tfrecord --engine steam",
            "pack {photos} {out} --format tfrecord --source floppy",
            "pack {photos} {out} --format tfrecord --option split=test",
            "pack {photos} {out} --format tfrecord --option split",
            "pack {photos} {out} --format tfrecord --root {photos}",
            "pack {photos}/absent {out} --format tfrecord",
            "pack {photos}/cat/0001.png {out} --format tfrecord",
        ],
    )
    def test_2_wrong_usage(self, run, photos, tmp_path, words):
        code, _, err = run(*(word.format(photos=photos, out=tmp_path / "out") for word in words.split()))
        assert code == 2
        assert err
        assert "Traceback" not in err
        assert not (tmp_path / "out").exists()

    def test_3_bad_input(self, run, photos, tmp_path):
        (photos / "cat/bad.png").write_bytes(b"no")
        code, _, err = run("pack", photos, tmp_path / "out", "--format", "tfrecord")
        assert code == 3
        assert "'cat/bad.png': it is not an image" in err
        assert not (tmp_path / "out" / NAME).exists()

    @pytest.mark.parametrize("verb", ["info", "verify"])
    def test_3_no_data_set(self, run, tmp_path, verb):
        code, _, err = run(verb, tmp_path)
        assert code == 3
        assert f"{tmp_path / NAME} does not exist" in err

    def test_4_storage(self, run, photos, tmp_path):
        (tmp_path / "file").write_text("")
        code, _, err = run("pack", photos, tmp_path / "file/out", "--format", "tfrecord")
        assert code == 4
        assert "Not a directory" in err

    def test_5_missing_package(self, run, photos, tmp_path, monkeypatch):
        monkeypatch.setitem(sys.modules, "h5py", None)
        code, _, err = run("pack", photos, tmp_path / "out", "--format", "hdf5", "--engine", "serial")
        assert code == 5
        assert "pip install 'h5py>=" in err


class TestInfo:
    def test_tells_what_is_packed(self, run, packed):
        manifest = Manifest.load(packed)
        code, out, _ = run("info", packed)
        assert code == 0
        assert "cat: 5, dog: 7" in out
        assert manifest.content_id in out

    def test_json(self, run, packed):
        report = json.loads(run("info", packed, "--json")[1])
        assert (report["samples"], report["shards"], report["classes"]) == (12, 2, 2)
        assert report["schema"] == {"image": "bytes", "label": "int64"}

    def test_scores_a_shuffle_window(self, run, photos, tmp_path):
        """Two shards, packed class by class: a window of both is the exact shuffle, one of one shard is not."""
        for shuffle in ([], ["--shuffle", 1]):
            words = ["--format", "recordio", "--num-shards", 2, "--engine", "serial", *shuffle, "--overwrite"]
            assert run("pack", photos, tmp_path / "out", *words)[0] == 0
            words = ["--json", "--batch-size", 4, "--shuffle-window"]
            scores = [json.loads(run("info", tmp_path / "out", *words, w)[1])["mixing_score"] for w in (1, 2)]
            assert scores[1] == {"shuffle_window": 2, "batch_size": 4, "by_class": 1, "at_worst": 1}
            assert 0 < scores[0]["at_worst"] <= scores[0]["by_class"] <= 1
            assert scores[0]["at_worst"] < 0.5
        assert scores[0]["by_class"] > 0.5
        assert "mixing score" in run("info", tmp_path / "out", "--shuffle-window", 1)[1]
        assert "mixing score" not in run("info", tmp_path / "out")[1]

    def test_verify_json_lists_damage(self, run, packed):
        file = next(packed.glob("*.tfrecord"))
        file.write_bytes(b"\0" * file.stat().st_size)
        report = json.loads(run("verify", packed, "--json")[1])
        assert {item["path"] for item in report["damaged"]} == {str(file)}


class TestStageStatus:
    def test_tells_of_a_copy_whose_source_is_gone(self, run, packed, tmp_path):
        dest = tmp_path / "dest"
        assert run("stage", packed, dest, "--quiet")[0] == 0
        packed.rename(tmp_path / "away")
        code, out, _ = run("stage", packed, dest, "--status")
        assert code == 0
        assert f"{dest}/" in out and out.endswith(": complete\n")
        (tmp_path / "broken").symlink_to("nowhere")
        for words in (["stage", tmp_path / "away", tmp_path / "broken", "--status"], ["clean", tmp_path / "broken"]):
            code, out, err = run(*words)
            assert (code, out) == (4, "") and "broken is no folder: name the one that was given to dlio stage" in err
        code, out, err = run("stage", tmp_path / "other", dest, "--status")
        assert code != 0 and out == "" and "does not exist" in err
