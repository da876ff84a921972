"""Wrong, reordered or misplaced arguments."""

from __future__ import annotations

import json
import logging
import os
import pty
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

import dlio
from dlio import formats
from dlio.cli import VERBS, parser
from dlio.pack.sources import open_source


def test_the_options_of_all_verbs_may_stand_before_the_verb(run, packed):
    before, after = run("--json", "info", packed), run("info", "--json", packed)
    assert before == after and json.loads(after[1])["samples"] == 12
    assert run("--quiet", "verify", packed, "--workers", 1) == (0, "", "")


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("pck a b", "pack"),
        ("pack a b --shard-sise 1M", "--shard-size"),
        ("stage a --strateggy auto", "--strategy"),
        ("pack a b --shards 4", "--num-shards"),
        ("pack a b --on-error skp", "skip"),
        ("pack a b --color gray", "grey"),
        ("nope", ""),
        ("--verison", "--version"),
        ("--nodes 3 plan a", ""),
        ("pack a", ""),
    ],
)
def test_a_wrong_word_is_two_lines_and_says_what_may_be_meant(run, words, meant):
    code, out, err = run(*words.split())
    assert (code, out, err.count("\n")) == (2, "", 2)
    assert f"did you mean {meant}?" in err if meant else "did you mean" not in err
    assert (verb := words.split()[0]) not in ("pack", "stage") or f"dlio {verb} --help" in err.splitlines()[1]


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("pack {photos} {out} --format tfrecrod", "tfrecord"),
        ("pack {photos} {out} --source imagefoldr", "imagefolder"),
        ("pack {photos} {out} --engine prozesses", "processes"),
        ("index {photos} --format webdatset", "webdataset"),
        ("stage {photos} {out} --strategy replicat", "replicate"),
    ],
)
def test_a_value_that_is_unknown_says_which_may_be_meant(run, photos, tmp_path, words, meant):
    code, _, err = run(*words.format(photos=photos, out=tmp_path / "out").split())
    assert code == 2
    assert f"did you mean {meant}?" in err


def test_dlio_alone_prints_its_help(run):
    code, out, err = run()
    assert (code, err) == (0, "")
    assert out == run("--help")[1]
    assert "Packs the samples of SRC" in out


@pytest.mark.parametrize("verb", [name for names in VERBS.values() for name in names])
def test_each_help_fits_and_has_examples_that_can_be_parsed_and_its_page(run, verb, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    _, out, _ = run(verb, "--help")
    assert max(map(len, out.splitlines())) <= 80
    assert out.startswith(f"usage: dlio {verb} ")
    examples = re.findall(rf"^  dlio ({verb}\b.*)", out, re.MULTILINE)
    for example in examples:
        parser(verb).parse_args(shlex.split(example))
    assert examples
    page = re.search(r"^more: (docs/.*\.md)$", out, re.MULTILINE)
    assert page and (Path(__file__).parents[2] / page[1]).is_file()


@pytest.mark.parametrize("verb", ["pack", "convert", "stage", "plan"])
def test_no_help_has_more_than_ten_options_in_one_list(run, verb):
    lists = run(verb, "--help")[1].split("\n\n")
    assert max(len(re.findall(r"^  -", each, re.MULTILINE)) for each in lists) <= 10


@pytest.mark.parametrize(
    ("words", "kind", "code", "said"),
    [
        ("info {photos} --json", "ManifestError", 3, "manifest.jsonl does not exist"),
        ("--json info", "ArgumentsError", 2, "the following arguments are required: DATASET"),
        ("stage s3://user:secret@host/x {photos} --json --strategy relay", "UsageError", 2, "is not a strategy"),
    ],
)
def test_with_json_an_error_is_one_object_on_stderr(run, photos, words, kind, code, said):
    found, out, err = run(*words.format(photos=photos).split())
    report = json.loads(err)
    assert (found, out) == (code, "")
    assert said in report.pop("error")
    assert report == {"kind": kind, "exit_code": code}


def test_colours_are_for_terminals_that_want_them():
    for variables, wanted in (({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False)):
        master, terminal = pty.openpty()
        environ = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERM")} | variables
        command = [sys.executable, "-m", "dlio", "info", "/nowhere"]
        subprocess.run(command, stderr=terminal, stdout=subprocess.DEVNULL, env=environ, check=False)
        os.close(terminal)
        assert os.read(master, 1 << 16).startswith(b"\x1b[1mdlio:\x1b[0m " if wanted else b"dlio: ")
        os.close(master)


def test_verbose_prints_the_log(packed, tmp_path):
    command = [sys.executable, "-m", "dlio", "stage", packed, tmp_path / "local", "--verbose"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "dlio: staging by replicate: there is one node" in done.stderr
    assert logging.getLogger("dlio").level == logging.NOTSET


@pytest.mark.parametrize("shell", ["bash", "zsh", "tcsh"])
def test_the_shell_completes_verbs_and_options(run, shell):
    pytest.importorskip("shtab")
    code, out, _ = run("--print-completion", shell)
    assert code == 0
    assert "shard-size" in out and "verify" in out


@pytest.mark.parametrize(
    ("typed", "completed"),
    [
        ("dlio sta", "stage"),
        ("dlio pack a b --res", "--resize"),
        ("dlio pack a b --format tf", "tfrecord"),
        ("dlio pack a b --color g", "grey"),
        ("dlio stage a --strategy b", "broadcast"),
        ("dlio pack packe", "packed"),
        ("dlio stage packe", "packed"),
        ("dlio clean pho", "photos"),
    ],
)
def test_bash_completes_values_and_paths(run, packed, typed, completed):
    pytest.importorskip("shtab")
    script = packed.parent / "completion"
    script.write_text(run("--print-completion", "bash")[1])
    count = len(typed.split()) - 1
    ask = f'. {script}; COMP_WORDS=({typed}); COMP_CWORD={count}; _shtab_dlio; echo "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "-c", ask], capture_output=True, text=True, check=True, cwd=packed.parent)
    assert done.stdout.split() == [completed]


def test_completion_without_its_package_is_one_line(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "shtab", None)
    code, _, err = run("--print-completion", "bash")
    assert code == 5 and "shell completion needs the package 'shtab': pip install" in err


@pytest.mark.parametrize("name", formats.names())
def test_a_manifest_or_a_shard_stands_for_its_data_set(run, photos, tmp_path, name):
    manifest = dlio.pack(photos, tmp_path / "packed", format=name, num_shards=2, engine="serial")
    shard = manifest.shards[1].files[0].name.partition("/")[0]
    for given in ("manifest.jsonl", shard):
        path = manifest.root / given
        assert dlio.info(path)["path"] == str(manifest.root)
        assert run("verify", path, "--workers", 1, "--quiet") == (0, "", "")
        assert dlio.stage(path, tmp_path / "local").content_id == manifest.content_id
        assert dlio.convert(path, tmp_path / given / "out", format="webdataset", engine="serial").num_samples == 12
        assert open_source(path).name == "packed"
    assert dlio.resolve(manifest.root / shard) == dlio.resolve(manifest.root)


@pytest.mark.parametrize(
    "words", ["index {url} --format tfrecord", "stage {packed} {url}", "clean {url}"],
)  # fmt: skip
def test_a_url_that_a_verb_does_not_take_is_refused_in_words(run, packed, words):
    code, _, err = run(*words.format(url="s3://user:secret@host/x", packed=packed).split())
    assert code == 2
    assert "s3://host/x is a URL: give a path" in err


@pytest.mark.parametrize("words", [["stage", "", "local"], ["stage", "packed", ""], ["clean", ""], ["verify", ""]])
def test_a_variable_that_is_not_set_is_not_taken_for_this_folder(run, words):
    code, _, err = run(*words)
    assert code == 2 and "an empty path: is a variable of your script not set?" in err


def test_a_cache_size_without_a_background_is_refused(run, packed, tmp_path):
    code, _, err = run("stage", packed, tmp_path / "local", "--cache-size", "1MiB")
    assert code == 2 and "--cache-size needs --background" in err
    assert not (tmp_path / "local").exists()


def test_options_may_stand_between_the_arguments(run, packed, tmp_path):
    code, out, _ = run("stage", packed, "--dry-run", tmp_path / "local", "--json")
    assert code == 0 and json.loads(out)["path"].startswith(str(tmp_path / "local"))
    assert run("stage", packed, tmp_path, "more")[0] == run("stage")[0] == 2
