"""Errors are printed in one line, whatever the names, the output and the interrupts."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import dlio
from dlio.dataset.manifest import Manifest
from tests.helpers.images import make_image_folder


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


def test_closed_streams_change_no_exit_code(tmp_path):
    command = f'exec "{sys.executable}" -m dlio info "{tmp_path}/none" <&- >&- 2>&-'
    assert subprocess.run(["sh", "-c", command]).returncode == 3


def test_a_newline_in_a_class_name_breaks_no_line(run, tmp_path):
    make_image_folder(tmp_path / "in", {"a\nb\x1b[2J": 2})
    dlio.pack(dlio.sources.image_folder(tmp_path / "in"), tmp_path / "out", engine="serial")
    assert r"samples per class    'a\nb\x1b[2J': 2" in run("info", tmp_path / "out")[1]


def test_info_has_no_line_for_classes_if_there_are_none(run, tmp_path):
    make_image_folder(tmp_path, {"a": 1})
    dlio.pack(dlio.sources.images(tmp_path / "a"), tmp_path / "out", engine="serial")
    assert "samples per class" not in run("info", tmp_path / "out")[1]


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


def test_an_interrupt_while_the_options_are_read_is_one_line():
    source = """
import os, signal, sys
from dlio import cli
def interrupt(*_):
    os.kill(os.getpid(), signal.SIGINT)
cli.parser = interrupt
sys.exit(cli.main(["verify", "x"]))
"""
    run = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert (run.returncode, run.stderr) == (130, "dlio: interrupted\n")


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
    assert run.stderr == "dlio: interrupted; run the same command again to continue\n"
