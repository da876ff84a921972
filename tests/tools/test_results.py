"""`python -m benchmarks` keeps what a benchmark prints, and docs/performance.md has the tables that were kept."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from benchmarks.mlperf_storage.cases import FIGURES
from benchmarks.results import Result, Table, parsed
from tools.site.performance import MARKED, NOTES, PAGE, RESULTS, filled
from tools.site.summary import DATE, summary

ROOT = Path(__file__).parents[2]
PRINTED = """### First

| way | us |
|---|---:|
| a, `b` | 1.5 |
| c | |

a line
| other |
|---|
| x |
"""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks", *words]
    return subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)


def test_what_is_printed_is_kept_table_by_table():
    tables, text = parsed(PRINTED)
    assert tables == [
        Table("First", ["way", "us"], [["a, `b`", "1.5"], ["c", ""]]),
        Table("First", ["other"], [["x"]]),
    ]
    assert text == ["a line"]
    assert [parsed(f"# {table.title}\n{table.markdown()}")[0] for table in tables] == [[table] for table in tables]


def test_a_second_run_of_a_day_replaces_no_file(tmp_path):
    result = Result.of("name", ["--rounds", "1"], PRINTED, {"load": [1.0, 2.0]})
    first, second = result.write(tmp_path), result.write(tmp_path)
    assert first != second and Result.read(first) == Result.read(second) == result


def test_a_benchmark_runs_by_its_name_and_keeps_its_result(tmp_path):
    ran = run("import_time", "--runs", "1", f"--json={tmp_path}")
    assert ran.returncode == 0, ran.stderr
    (path,) = tmp_path.iterdir()
    found = json.loads(path.read_text())
    assert found["name"] == "import_time" and found["words"] == ["--runs", "1"]
    assert found["machine"]["cores"] >= 1 and len(found["machine"]["load"]) == 2
    assert "dlio-toolkit" in found["machine"]["versions"]
    assert len(found["text"]) == 4 and found["text"] == [line.strip() for line in ran.stdout.splitlines()]


def test_an_unknown_name_shows_those_that_are():
    ran = run("fastest")
    assert ran.returncode == 1 and ran.stderr.startswith("there is no benchmark 'fastest'; benchmarks: arrays, ")
    assert "mlperf_storage" in ran.stderr and "live_plan" in ran.stderr


def test_the_figures_of_mlperf_storage_are_the_rows_of_the_notes():
    title = "MLPerf Storage's workloads, unofficial and unverified, of the OPEN kind"
    names = next(mark[1].split() for mark in MARKED.finditer(NOTES.read_text()) if mark[2] == title)
    tables = [table for name in names for table in Result.read(RESULTS / f"{name}.json").tables if table.title == title]
    rows = {(row[0], row[2], row[3], row[4]) for table in tables for row in table.rows}
    cases = [(case.name, "cold" if case.is_cold else "warm", str(case.ranks), case.emulated) for case in FIGURES]
    assert sorted(cases) == sorted(rows)


def test_the_tables_of_the_page_are_those_of_the_results():
    page, notes = PAGE.read_text(), NOTES.read_text()
    assert (filled(page), filled(notes)) == (page, notes), "run python -m tools.site.performance"
    left = MARKED.sub("", page)
    assert [line for line in left.splitlines() if line.startswith("|")] == []


def test_every_result_says_when_and_on_what():
    for path in (ROOT / "benchmarks/results").glob("*.json"):
        result = Result.read(path)
        assert path.name.startswith(f"{result.name}-{result.date}") and result.machine and result.tables


def test_the_summary_is_made_from_the_other_results():
    kept = Result.read(RESULTS / f"summary-{DATE}.json")
    assert kept == summary() and len(kept.tables[0].rows) == 12
