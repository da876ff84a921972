"""The command line: what it does is checked through the library; exit codes; reports; documentation of every option."""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import dlio
from dlio import cli, formats
from dlio.manifest import NAME, Manifest
from tests.images import make_image_folder

README = Path(__file__).parent.parent / "README.md"


@pytest.fixture
def photos(tmp_path) -> Path:
    make_image_folder(tmp_path / "photos", {"cat": 5, "dog": 7})
    return tmp_path / "photos"


@pytest.fixture
def packed(photos, tmp_path) -> Path:
    dlio.pack(dlio.sources.image_folder(photos), tmp_path / "packed", num_shards=2, engine="serial")
    return tmp_path / "packed"


@pytest.fixture
def run(capsys):
    """Runs a command line in this process; returns exit code, standard output and standard error."""

    def run(*argv: object) -> tuple[int, str, str]:
        try:
            code = cli.main([str(word) for word in argv])
        except SystemExit as end:
            code = end.code
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def verbs() -> dict[str, argparse.ArgumentParser]:
    actions = [action for action in cli.parser()._actions if isinstance(action, argparse._SubParsersAction)]
    return actions[0].choices


def options(verb: argparse.ArgumentParser) -> list[str]:
    return [name for action in verb._actions for name in action.option_strings if name not in ("-h", "--help")]


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
            assert "dlio: skipped 'cat/bad.png': it is no image: " in err
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
        assert re.search(r"damaged +2\n", out)

    @pytest.mark.parametrize(
        "words",
        [
            "",
            "fly",
            "pack",
            "pack {photos} {out}",
            "pack {photos} {out} --format floppy",
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
        assert "'cat/bad.png': it is no image" in err
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
        assert "pip install 'dlio[hdf5]'" in err


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


def test_a_name_that_is_no_utf8_is_printed_escaped(photos, tmp_path):
    out = tmp_path / os.fsdecode(b"caf\xe9")
    command = [sys.executable, "-m", "dlio", "pack", str(photos), str(out), "--format", "tfrecord"]
    run = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONIOENCODING": "utf-8"})
    assert (run.returncode, run.stderr) == (0, "")
    assert "caf\\udce9" in run.stdout


def test_a_closed_pipe_ends_quietly(packed):
    command = f"{sys.executable} -m dlio info {packed} | true"
    run = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True)
    assert "Traceback" not in run.stderr


def test_a_full_disk_under_the_report_is_said(packed):
    with Path("/dev/full").open("w") as full:
        run = subprocess.run([sys.executable, "-m", "dlio", "info", packed], stdout=full, stderr=subprocess.PIPE)
    assert run.stderr.decode() == "dlio: cannot write the report: No space left on device\n"
    assert run.returncode == 4


def test_a_newline_in_a_class_name_breaks_no_line(run, tmp_path):
    make_image_folder(tmp_path / "in", {"a\nb\x1b[2J": 2})
    dlio.pack(dlio.sources.image_folder(tmp_path / "in"), tmp_path / "out", engine="serial")
    assert r"samples a class      'a\nb\x1b[2J': 2" in run("info", tmp_path / "out")[1]


def test_info_has_no_line_for_the_classes_of_what_has_none(run, tmp_path):
    make_image_folder(tmp_path, {"a": 1})
    (tmp_path / "x.lst").write_text("0\t7\ta/0000.png\n")
    dlio.pack(dlio.sources.lst_file(tmp_path / "x.lst"), tmp_path / "out", engine="serial")
    assert "samples a class" not in run("info", tmp_path / "out")[1]


def test_a_newline_in_a_path_breaks_no_error(run, tmp_path):
    make_image_folder(tmp_path / "in\n", {"a": 2})
    (tmp_path / "in\n" / "a" / "0001.png").write_bytes(b"")
    code, _, err = run("pack", tmp_path / "in\n", tmp_path / "out", "--format", "tfrecord", "--engine", "serial")
    assert (code, err.count("\n"), err.startswith(rf"dlio: {tmp_path}/in\n: 'a/0001.png': it is empty")) == (3, 1, True)


def test_a_missing_file_is_listed_once_and_in_words(run, packed):
    file = packed / Manifest.load(packed).shards[0].files[0].name
    file.unlink()
    code, _, err = run("verify", packed, "--workers", 1)
    assert (code, err.count("\n"), err.count(str(file))) == (1, 1, 2)
    assert "No such file" in err
    assert "[Errno" not in err


def test_an_interrupted_check_promises_nothing(packed):
    source = f"""
import os, signal, sys
from dlio import cli
from dlio.executors import processes
def interrupt(*_):
    os.kill(os.getpid(), signal.SIGINT)
processes.open = interrupt
sys.exit(cli.main(["verify", {str(packed)!r}]))
"""
    run = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (130, "dlio: interrupted\n")


def test_an_interrupt_says_how_to_go_on(photos, tmp_path):
    source = f"""
import os, signal, sys
from dlio import cli
from dlio.pack import run
write = run.write_shard
def interrupt(task):
    os.kill(os.getpid(), signal.SIGINT)
    return write(task)
run.write_shard = interrupt
sys.exit(cli.main(["pack", {str(photos)!r}, {str(tmp_path / "out")!r}, "--format", "tfrecord", "--engine", "serial"]))
"""
    run = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert run.returncode == 130
    assert run.stderr == "dlio: interrupted; run the same command again to go on\n"


def test_the_version(run):
    assert run("--version") == (0, f"dlio {dlio.__version__}\n", "")


@pytest.mark.parametrize("verb", verbs())
def test_every_verb_has_help(run, verb):
    code, out, _ = run(verb, "--help")
    assert code == 0
    assert all(name in out for name in options(verbs()[verb]))
    for action in verbs()[verb]._actions:
        assert action.help, f"{verb} {action.dest} has no help"


@pytest.mark.parametrize("verb", verbs())
def test_the_readme_documents_every_verb_and_option(verb):
    text = README.read_text()
    assert f"dlio {verb}" in text
    undocumented = [name for name in options(verbs()[verb]) if not re.search(rf"`[^`]*{re.escape(name)}\b", text)]
    assert undocumented == []
