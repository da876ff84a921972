"""Small schedules of the real engine, in virtual time: no promise breaks, and a seed decides everything."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import dlio
from tests.helpers.live import eventually
from tests.helpers.rounds import ROUNDS
from tools.simulate import faults, forked, report, scenario
from tools.simulate.__main__ import main
from tools.simulate.report import shortened
from tools.simulate.scheduler import S

ROOT = Path(__file__).parents[3]
_SCHEDULES = 20  # of each of the groups below, in `make test`


def _schedule(seed: int, on: list[str], nodes: int = 5) -> forked.Schedule:
    """Returns a schedule; nine of ten are small."""
    size = scenario.small(seed) if seed % 10 else scenario.sized(seed, nodes, 8)
    return forked.Schedule(seed, size, faults.drawn(seed, size, on))


def _outcomes(group: int, on: list[str]) -> Iterator[scenario.Outcome]:
    """Yields the results of the schedules of a group."""
    return forked.several(_schedule(seed, on) for seed in range(group * 10_000, group * 10_000 + _SCHEDULES * ROUNDS))


@pytest.mark.parametrize("group", range(5))
def test_no_promise_breaks_without_a_fault(group: int) -> None:
    for outcome in _outcomes(group, []):
        assert not outcome.broken, f"seed {outcome.seed}: {outcome.broken}"
        assert not outcome.failures


@pytest.mark.parametrize("group", range(10))
def test_no_promise_breaks_with_faults(group: int) -> None:
    for outcome in _outcomes(group, faults.kinds()):
        assert not outcome.broken, f"seed {outcome.seed}: {outcome.broken}"


def test_no_promise_breaks_on_16_nodes() -> None:
    outcome = forked.run(_schedule(70, faults.kinds(), nodes=16))
    assert not outcome.broken


def test_no_process_of_a_node_begins_by_mpi_before_all_have_come() -> None:
    schedule = _schedule(230001457, faults.kinds())
    late = [fault for fault in schedule.faults if fault.kind == "late"]  # the only process that has come would read all
    assert not forked.run(forked.Schedule(schedule.seed, schedule.size, late)).broken


def test_a_schedule_does_not_depend_on_those_before_it() -> None:
    schedules = [_schedule(seed, faults.kinds()) for seed in (11, 12, 13)]
    together = [outcome.digest for outcome in forked.several([*schedules, schedules[0]])]
    assert together == [forked.run(schedule).digest for schedule in [*schedules, schedules[0]]]
    assert len(set(together)) == 3


def test_the_end_of_a_process_is_told_and_the_next_schedules_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(seed: int, *arguments: object, **options: object) -> scenario.Outcome:
        if seed == 2:
            os._exit(1)
        return scenario.Outcome(seed, broken="" if seed != 4 else str(1 // 0))

    monkeypatch.setattr(scenario, "run", run)
    size = scenario.small(1)
    found = list(forked.several(forked.Schedule(seed, size, ()) for seed in range(1, 5)))
    assert [outcome.seed for outcome in found] == [1, 2, 3, 4]
    assert [outcome.broken.split()[:3] for outcome in found] == [
        [],
        ["the", "simulator", "ended,"],
        [],
        ["the", "simulator", "failed:"],
    ]
    monkeypatch.setattr(forked, "_close_all_but", lambda descriptor: 1 // 0)
    (failed,) = forked.several([forked.Schedule(1, size, ())])
    assert failed.broken.startswith("the simulator ended"), "and its process ran no more of this test"


def test_a_seed_is_the_same_in_every_process() -> None:
    script = "import sys; from tools.simulate.__main__ import main; print([main(['--seed', s]) for s in '25'])"

    def digests(hashes: str) -> list[str]:
        environ = {**os.environ, "PYTHONHASHSEED": hashes}
        command = [sys.executable, "-c", script]
        ran = subprocess.run(command, env=environ, cwd=ROOT, capture_output=True, text=True, check=True)
        return re.findall(r"trace (\S+)", ran.stdout)

    first, second = digests("0")
    assert first != second and digests("1") == [first, second]


def test_many_schedules_are_counted_by_fault(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["--seed", "3", "--schedules", "5", "--nodes", "3", "--files", "3"]) == 0
    first, *counts = capfd.readouterr().out.splitlines()
    assert first.startswith("5 schedules of ")
    assert "a promise broken in 0;" in first
    sizes = {seed: scenario.sized(seed, 3, 3) for seed in range(3, 8)}
    steady = Counter(
        fault.kind
        for seed, size in sizes.items()
        for fault in faults.drawn(seed, size, faults.kinds())
        if fault.at == 0
    )
    assert steady
    found = {line.split(maxsplit=1)[1]: int(line.split()[0]) for line in counts}
    assert {kind: found[kind] for kind in steady} == dict(steady)


def test_schedules_that_nobody_waits_for_leave_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(forked, "_MEMORY", tmp_path)
    outcomes = forked.several(_schedule(seed, []) for seed in range(1, 70))
    assert next(outcomes).seed == 1
    assert len([*tmp_path.iterdir()]) > 1
    outcomes.close()
    assert not [*tmp_path.iterdir()]


def test_faults_are_drawn_and_named() -> None:
    size = scenario.sized(1, 5, 8)
    drawn = [faults.drawn(seed, size, faults.kinds()) for seed in range(100)]
    assert {fault.kind for each in drawn for fault in each} == set(faults.kinds())
    assert drawn[0] == faults.drawn(0, size, faults.kinds())
    only = faults.drawn(3, size, ["kill"])
    assert {fault.kind for fault in only} <= {"kill"}
    assert faults.chosen("none") == []
    assert faults.chosen("kill, cut") == ["kill", "cut"]


def test_the_list_of_faults_says_what_each_does(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--faults", "list"]) == 0
    told = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert [*told] == faults.kinds()


def test_who_interrupts_schedules_is_told_how_many_ran() -> None:
    command = [sys.executable, "-m", "tools.simulate", "--schedules", "100000", "--nodes", "2", "--files", "1"]
    with subprocess.Popen(command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as running:
        eventually(lambda: Path(f"/proc/{running.pid}/task/{running.pid}/children").read_text())
        running.send_signal(signal.SIGINT)
        try:
            out, err = running.communicate(timeout=20)
        except subprocess.TimeoutExpired:  # Python drops an interrupt that comes in a hook after a fork
            running.send_signal(signal.SIGINT)
            try:
                out, err = running.communicate(timeout=20)
            finally:
                running.kill()
    assert running.returncode == 130
    assert re.search(r"^interrupted after [\d,]+ of 100,000 schedules$", err, re.MULTILINE)
    assert "schedules of" in out


def test_an_unknown_fault_and_a_seed_of_other_sources_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    one_only = ["--schedules", "2", "--until", "7"]
    for arguments, problem in (
        (["--faults", "flood"], "no faults flood"),
        (["--version", "9"], f"--version 9: dlio and the simulator have other sources here ({report.version()})"),
        (one_only, "for one schedule"),
    ):
        assert main(arguments) == 2
        assert problem in capsys.readouterr().err


def test_a_version_is_a_digest_of_all_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "dlio").mkdir()
    (tmp_path / "simulate").mkdir()
    monkeypatch.setattr(dlio, "__file__", str(tmp_path / "dlio/__init__.py"))
    monkeypatch.setattr(report, "__file__", str(tmp_path / "simulate/report.py"))
    found = {report.version.__wrapped__()}
    for name in ("dlio/a.py", "simulate/a.py", "simulate/b.py"):
        (tmp_path / name).write_text("pass")
        found.add(report.version.__wrapped__())
    (tmp_path / "dlio/a.py").write_text("fail")
    assert len(found | {report.version.__wrapped__()}) == 5


@pytest.mark.parametrize("option", ["--nodes", "--files", "--schedules", "--until", "--trace"])
@pytest.mark.parametrize("number", ["0", "-3", "x"])
def test_numbers_begin_with_one(option: str, number: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main([option, number])
    assert f"{option}: '{number}' is not a number >= 1" in capsys.readouterr().err


def test_a_schedule_that_stops_early_says_so_and_a_picture_needs_a_folder(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    short = ["--nodes", "2", "--files", "1", "--faults", "none"]
    assert main([*short, "--until", "50"]) == 0
    assert "stopped after event 50: what must hold in the end was not checked" in capsys.readouterr().out
    assert main([*short, "--until", "1000000", "--svg", str(tmp_path / "a.svg")]) == 0
    assert "stopped" not in capsys.readouterr().out
    assert "seed 1: " in (tmp_path / "a.svg").read_text()
    assert main([*short, "--svg", str(tmp_path / "none/a.svg")]) == 4
    assert f"--svg {tmp_path}/none/a.svg: No such file or directory: name a file" in capsys.readouterr().err


def test_a_broken_promise_prints_the_fewest_faults_and_their_trace_and_can_be_repeated(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(scenario, "_PATIENCE", 1 * S)  # so who waits for a late node ends too late
    given = ["--seed", "251", "--nodes", "2", "--files", "2", "--faults", "late,skew,pids"]
    assert main(given) == 1
    printed = capsys.readouterr().out
    _, fault, *trace, broken, again = printed.splitlines()
    assert fault.startswith("  fault 1: event 0: late")
    assert 2 < len(trace) <= 30 and trace[-1].endswith(" - broken end")
    assert broken.startswith("BROKEN: end at 4.0")
    assert again.startswith("again: python -m tools.simulate --version ") and again.endswith(" --replay 1")
    assert main(again.split()[4:]) == 1
    assert capsys.readouterr().out == printed
    assert main([*again.split()[4:], "--trace", "2"]) == 1
    assert capsys.readouterr().out.splitlines()[2:-2] == trace[-2:]

    assert main([*given, "--schedules", "6"]) == 1
    several = capsys.readouterr().out
    assert several.startswith(printed), "the first one"
    assert several.count("BROKEN: ") == 3 and several.count("- broken end") == 1


def test_the_fewest_faults_that_break_a_promise_are_found() -> None:
    assert shortened(range(20), lambda numbers: {3, 17} <= set(numbers)) == [3, 17]
    assert shortened(range(20), lambda numbers: 5 in numbers) == [5]
    assert shortened(range(3), lambda numbers: True) == []
