"""What the simulator prints and draws."""

from __future__ import annotations

from xml.etree import ElementTree

from tools.simulate.faults import SOURCE, VERSION, Fault, Schedule
from tools.simulate.oracle import Violation
from tools.simulate.report import Result, as_svg, lines_of, marks, summary
from tools.simulate.scheduler import S

FAULTS = (Fault(S, "kill", 1), Fault(2 * S, "source-slow", SOURCE, 3, 4 * S))
TRACE = (
    "1000000000 - kill 1.1000.2",
    "1500000000 0.1000.1/dlio-fill connect 0 2",
    "2000000000 - disk source slow 3",
    "2500000000 2.1000.3/agent named node2 a<b",
)
RESULT = Result(Schedule(7, 3, 2, FAULTS), "ab" * 16, 1234, 10 * S, (), TRACE, 100, 100, 50)


def test_a_schedule_is_told_with_its_faults():
    text = "\n".join(lines_of(RESULT))
    assert f"seed 7@{VERSION}: 3 nodes, 2 files, 2 faults" in text
    assert "2.000 s source-slow 3 at the source, until 6.000 s" in text
    assert "; 1.000 times the data set read from the source" in text
    assert "ab" * 16 in text
    assert text.endswith("all promises were kept")


def test_a_broken_promise_comes_with_the_trace_and_how_to_see_it_again():
    broken = Result(RESULT.schedule, "", 1, S, (Violation("right-bytes", S, "node 2 got wrong bytes"),), TRACE)
    text = "\n".join(lines_of(broken))
    assert "BROKEN: right-bytes at 1.000000 s: no byte is delivered that is not the sample's; found: node 2" in text
    assert TRACE[0] in text
    assert f"--seed 7@{VERSION}" in text
    assert "kept" not in text


def test_many_schedules_are_counted_by_their_faults():
    lines = list(summary([RESULT, RESULT, Result(Schedule(1), "", 1, S, (Violation("end", 1, ""),))]))
    assert lines[0].startswith("3 schedules, 2,469 events")
    assert "          2 with kill" in lines
    assert "          1 with none" in lines
    assert "          1 BROKE end" in lines


def test_lines_of_a_trace_belong_to_nodes():
    assert [mark.node for mark in marks(TRACE)] == [1, 0, SOURCE, 2]


def test_the_picture_is_one_with_a_row_for_each_node_and_all_that_happened():
    root = ElementTree.fromstring(as_svg(RESULT))
    texts = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    titles = [each.text for each in root.iter("{http://www.w3.org/2000/svg}title")]
    assert {"node 0", "node 1", "node 2", "source"} <= set(texts)
    assert titles == [*map(str, FAULTS), *TRACE]
