"""The tool that breaks lines: what it reports of mutations that tests notice, miss, or do not fit."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from dlio.io.filesystems import mounts
from tests.helpers.forked import wait_for
from tools.mutants.mutation import Mutation, MutationError, load

REPOSITORY = Path(__file__).parents[2]
_KEYS = """
file = "dlio/random_keys.py"
promise = "Every part of a key counts."
old = "    for part in parts:\\n        state = mix("
new = "    for part in parts[1:]:\\n        state = mix("
"""
_STRONG = "from dlio.random_keys import derive\ndef test_parts_count():\n    assert derive(1, 2) != derive(3, 2)\n"
_WEAK = "from dlio.random_keys import derive\ndef test_a_number_comes():\n    assert isinstance(derive(1, 2), int)\n"
_CHILD = (
    "import subprocess, sys\ndef test_parts_count():\n"
    "    code = 'from dlio.random_keys import derive; assert derive(1, 2) != derive(3, 2)'\n"
    "    subprocess.run([sys.executable, '-c', code], check=True)\n"
)
_LONG = (
    "import random\nfrom dlio.random_keys import derive\ndef test_parts_count():\n"
    "    made = [[random.Random(seed).randbytes(1 << 20)] for seed in range(2)]\n"
    "    assert made[0] == made[derive(1, 2) == derive(3, 2)]\n"
)
_FAILING = _STRONG + "def test_fails_anyway():\n    assert False\n"
_WHERE = (
    "from pathlib import Path\ndef test_place(tmp_path):\n"
    "    Path(__file__).with_suffix('.at').write_text(str(tmp_path))\n"
)
_BLIND = "def test_nothing():\n    pass\n"
#: Those plugins of pytest that pyproject.toml has options for: to load all takes half of the time.
_PLUGINS = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "pytest_timeout"}
_ENDLESS = (
    "import os, subprocess, time\nfrom pathlib import Path\ndef test_it_ends(tmp_path):\n    path = Path('{0}.new')\n"
    "    bound = tmp_path / 'a folder'\n    bound.mkdir()\n"
    "    subprocess.run(['mount', '--bind', '{1}', bound], stderr=subprocess.DEVNULL)  # as root\n"
    "    path.write_text(str(os.getpid()))\n    path.rename('{0}')\n    time.sleep(600)\n"
)


def run(folder: Path, entries: str, *options: str) -> tuple[int, str]:
    """Returns the exit code of a run over a list of mutations, and what it printed."""
    (folder / "lists").mkdir(exist_ok=True)
    (folder / "lists/planted.toml").write_text(entries)
    command = [sys.executable, "-m", "tools.mutants", "--lists", folder / "lists", "--jobs", "1", *options]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=200, env=os.environ | _PLUGINS | {"CI": "true"}
    )
    return done.returncode, done.stdout + done.stderr


def entry(name: str, folder: Path, test: str, body: str = _KEYS, more: str = "") -> str:
    """Returns the entry of a mutation whose only test is written into a folder."""
    path = folder / f"test_{name}.py"
    path.write_text(test)
    return f'[{name}]\n{body}tests = ["{path}"]\n{more}\n'


def test_each_mutation_gets_its_verdict(tmp_path: Path) -> None:
    before = (REPOSITORY / "dlio/random_keys.py").read_bytes()
    entries = [
        entry("noticed", tmp_path, _STRONG),
        entry("noticed-by-a-child", tmp_path, _CHILD),
        entry("noticed-by-long-values", tmp_path, _LONG),
        entry("missed", tmp_path, _WEAK),
        entry("blind", tmp_path, _BLIND),
        entry("failing", tmp_path, _FAILING),
        entry("stale", tmp_path, _STRONG, _KEYS.replace("for part in parts:", "for part in pieces:")),
    ]
    code, said = run(tmp_path, "".join(entries))
    verdicts = dict(reversed(line.split()[:2]) for line in said.splitlines() if " planted/" in line and " s  " in line)
    assert verdicts == {
        "planted/noticed": "killed",
        "planted/noticed-by-a-child": "killed",
        "planted/noticed-by-long-values": "killed",
        "planted/missed": "survived",
        "planted/blind": "broken",
        "planted/failing": "broken",
        "planted/stale": "stale",
    }
    assert code == 1 and "survived: planted/missed, in dlio/random_keys.py" in said
    assert (REPOSITORY / "dlio/random_keys.py").read_bytes() == before


def test_all_killed_is_a_success_and_the_rest_is_named_when_time_is_up(tmp_path: Path) -> None:
    entries = entry("noticed", tmp_path, _STRONG + _WHERE)
    assert run(tmp_path, entries)[0] == 0
    used = (tmp_path / "test_noticed.at").read_text()
    assert "/dlio-mutants-" in used and not Path(used).exists()  # what tests leave there, no other run has to delete
    code, said = run(tmp_path, entries, "--seconds", "0")
    assert code == 0 and "left out  planted/noticed" in said and "1 left out" in said


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Path]:
    """A file in a folder that tests bind elsewhere; what they have left mounted goes."""
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/file").touch()
    yield tmp_path / "kept/file"
    for _, mount in mounts(Path("/proc/self/mountinfo").read_text()):
        if mount.startswith(f"{tmp_path}/"):
            subprocess.run(["umount", "--lazy", mount], check=True)


def test_a_terminated_run_leaves_no_process_no_folder_and_no_mount(tmp_path: Path, kept: Path) -> None:
    (tmp_path / "lists").mkdir()
    endless = _ENDLESS.format(tmp_path / "begun", kept.parent)
    (tmp_path / "lists/planted.toml").write_text(entry("endless", tmp_path, endless))
    command = [sys.executable, "-m", "tools.mutants", "--lists", tmp_path / "lists", "--jobs", "1"]
    (tmp_path / "tmp").mkdir()
    environ = os.environ | _PLUGINS | {"TMPDIR": str(tmp_path / "tmp")}
    with subprocess.Popen(command, cwd=REPOSITORY, env=environ) as running:
        wait_for(tmp_path / "begun")
        assert len(list((tmp_path / "tmp").glob("dlio-mutants-*"))) == 1
        running.terminate()
        assert running.wait(60) == 143
    assert not list((tmp_path / "tmp").glob("dlio-mutants-*"))
    assert kept.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "begun").read_text()), 0)


def test_the_list_fits_the_code() -> None:
    """A changed line also changes its mutation."""
    mutations = load()
    assert len(mutations) >= 100 and len({each.name for each in mutations}) == len(mutations)
    for each in mutations:
        each.text()
        assert all((REPOSITORY / test).is_file() for test in each.test_files), each.name


@pytest.mark.parametrize(("old", "new"), [("# kept", "# left"), ("return 1", "return (1)"), ("cache", "lru_cache")])
def test_what_changes_nothing_is_no_mutation(old: str, new: str, tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("from functools import *\n\n\n@cache  # kept\ndef one():\n    return 1\n")
    mutation = Mutation("one", "one.py", "It is one.", old, new, ())
    if new == "lru_cache":
        assert "@lru_cache  # kept\n" in mutation.text(tmp_path)
        return
    with pytest.raises(MutationError, match=r"it changes nothing in one\.py"):
        mutation.text(tmp_path)


def test_a_list_of_another_form_is_named(tmp_path: Path) -> None:
    code, said = run(tmp_path, "[odd]\nfile = 'dlio/urls.py'\n")
    assert code == 2 and "planted.toml is not a list of mutations" in said


@pytest.mark.skipif(not (REPOSITORY / ".git").exists(), reason="needs the history")
def test_a_change_of_a_module_chooses_its_mutations(tmp_path: Path) -> None:
    git = ["git", "-c", "user.name=t", "-c", "user.email=t", "-C", tmp_path]
    for name in ("tools/mutants/lists", "dlio", "tests"):
        (tmp_path / name).mkdir(parents=True)
    for path in (REPOSITORY / "tools/mutants").glob("*.py"):
        (tmp_path / "tools/mutants" / path.name).write_bytes(path.read_bytes())
    for name in ("one", "two"):
        (tmp_path / f"dlio/{name}.py").write_text(f"{name} = 1\n")
        (tmp_path / f"tests/test_{name}.py").write_text("")
    text = "".join(
        f'[{name}]\nfile = "dlio/{name}.py"\npromise = "."\nold = "1"\nnew = "2"\ntests = ["tests/test_{name}.py"]\n'
        for name in ("one", "two")
    )
    (tmp_path / "tools/mutants/lists/planted.toml").write_text(text)
    environ = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    for command in (["init", "-q", "-b", "main"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *command], check=True, env=environ)

    def chosen() -> set[str]:
        listing = [sys.executable, "-m", "tools.mutants", "--changed", "HEAD", "--list"]
        said = subprocess.run(listing, cwd=tmp_path, env=environ, capture_output=True, text=True, check=True).stdout
        return {line.split()[0] for line in said.splitlines() if line.startswith("planted/")}

    assert chosen() == set()
    (tmp_path / "dlio/two.py").write_text("more = 0\ntwo = 1\n")
    assert chosen() == {"planted/two"}
    (tmp_path / "tests/test_one.py").write_text("changed = True\n")
    assert chosen() == {"planted/one", "planted/two"}
    subprocess.run([*git, "commit", "-qam", "second"], check=True, env=environ)
    list_path = tmp_path / "tools/mutants/lists/planted.toml"
    list_path.write_text(text.replace('promise = "."', 'promise = "Another."', 1))
    assert chosen() == {"planted/one"}
