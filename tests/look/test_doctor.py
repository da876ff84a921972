"""dlio doctor: every line is good or says what to change, and nothing is waited for."""

from __future__ import annotations

import json
import threading
from importlib import metadata

import dlio
from dlio.io.sizes import format_size
from dlio.look import doctor as doctor_module
from dlio.look.checks.finding import Finding, State
from dlio.look.doctor import CHECKS, doctor


def found(check: str, findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if finding.check == check]


def test_every_check_answers_with_a_fact_or_advice(photos, tmp_path, monkeypatch):
    monkeypatch.setattr(doctor_module, "CHECKS", {name: CHECKS[name] for name in CHECKS if name != "MPI"})
    dlio.pack(photos, tmp_path / "packed", engine="serial")
    findings = doctor(tmp_path / "packed", tmp_path / "node")
    assert {finding.check for finding in findings} == (CHECKS.keys() - {"MPI"}) | {"data set", "destination"}
    assert all(finding.found and bool(finding.advice) == (finding.state is not State.GOOD) for finding in findings)
    assert State.BROKEN not in {finding.state for finding in findings}
    assert found("data set", findings)[0].found.startswith("tfrecord, 36 samples")


def test_what_cannot_work_is_broken_and_the_exit_code_says_so(run, monkeypatch, tmp_path):
    monkeypatch.setattr(doctor_module, "CHECKS", {"launcher": CHECKS["launcher"]})
    monkeypatch.setenv("DLIO_LAUNCHER", "nonsense")
    code, out, _ = run("doctor", tmp_path, "--json")
    states = {each["check"]: each["state"] for each in json.loads(out)["findings"]}
    assert (code, states) == (5, {"launcher": "broken", "data set": "broken"})
    monkeypatch.setenv("DLIO_LAUNCHER", "single")
    code, out, _ = run("doctor")
    assert (code, out) == (0, "good    launcher:       single: rank 0 of 1\n")


def test_a_mount_that_hangs_is_named_and_not_waited_for(monkeypatch):
    hanging = threading.Event()

    def hangs(check):
        yield Finding(check, State.GOOD, str(hanging.wait()))

    monkeypatch.setattr(doctor_module, "_SECONDS", 0.05)
    monkeypatch.setattr(doctor_module, "CHECKS", {"dead mount": hangs})
    (finding,) = doctor()
    hanging.set()
    assert (finding.check, finding.state) == ("dead mount", State.BROKEN)
    assert "no answer within 0.05 s" in finding.found


def test_what_a_dead_job_left_is_found(photos, tmp_path, monkeypatch):
    monkeypatch.setenv("DLIO_STAGED", str(tmp_path / "node"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    dlio.pack(photos, tmp_path / "packed", engine="serial")
    staged = dlio.stage(tmp_path / "packed", tmp_path / "node")
    monkeypatch.setattr("dlio.look.checks.storage.folders_with_copies", lambda: [tmp_path / "node"])
    assert [each.found for each in CHECKS["leftovers"]("leftovers")] == ["none: 1 staged and in use"]
    for lease in (tmp_path / "node" / "dlio" / ".leases").iterdir():
        lease.unlink()
    (line,) = CHECKS["leftovers"]("leftovers")
    expected = f"1 copy in {tmp_path / 'node'}, {format_size(staged.num_bytes)}, used by no job"
    assert expected in line.found and "dlio clean" in line.found
    (staged.root / "manifest.jsonl").unlink()
    (line,) = CHECKS["leftovers"]("leftovers")
    assert line.state == State.CHANGE and "1 copy in" in line.found and "dlio clean" in line.advice
    monkeypatch.setattr("dlio.look.checks.storage.folders_with_copies", lambda: [tmp_path / "node"] * 9)
    *_, last = found = list(CHECKS["leftovers"]("leftovers"))
    assert len(found) == 7 and last.found.startswith("3 more of the same kinds")


def test_mpi_is_tried_outside_the_job(monkeypatch):
    """A rank's variables would make MPI wait for the other ranks."""
    monkeypatch.setenv("PMI_RANK", "1")
    monkeypatch.setenv("PMI_SIZE", "2")
    monkeypatch.setenv("PMI_FD", "99")
    (finding,) = CHECKS["MPI"]("MPI")
    assert finding.found and "not start within" not in finding.found


def test_dlio_may_run_without_being_installed(monkeypatch):
    def absent(name):
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "requires", absent)
    (finding,) = CHECKS["packages"]("packages")
    assert finding == Finding("packages", State.GOOD, "none")
