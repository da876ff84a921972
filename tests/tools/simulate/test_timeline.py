"""The picture of a schedule."""

from __future__ import annotations

from xml.etree import ElementTree

from tools.simulate.timeline import as_svg, lives, marks

TRACE = (
    "1000000000 1.1000.2/agent connect 1 0",
    "1200000000 - kill 1.1000.2",
    "1500000000 0.1000.1/dlio-fill connect 0 2",
    "2000000000 - disk source slow 3",
    "2100000000 - disk node0 eio-read",
    "2200000000 log node 1 is lost",
    "2500000000 2.1000.3/agent named node2 a<b",
    "3000000000 - cut 2 0",
)


def test_what_happened_is_told_with_its_node():
    assert [(mark.node, mark.kind) for mark in marks(TRACE)] == [
        (1, "connect"),
        (1, "kill"),
        (0, "connect"),
        (-1, "slow"),
        (0, "eio-read"),
        (2, "named"),
        (2, "cut"),
    ]


def test_processes_live_from_the_first_line_to_the_last():
    found = lives(TRACE)
    assert set(found) == {"1.1000.2", "0.1000.1", "2.1000.3"}
    assert (found["1.1000.2"].begin, found["1.1000.2"].end, found["1.1000.2"].is_killed) == (10**9, 1_200_000_000, True)


def test_the_picture_has_a_row_for_each_node_and_all_that_happened():
    root = ElementTree.fromstring(as_svg("seed <7>", TRACE))
    texts = [each.text for each in root.iter("{http://www.w3.org/2000/svg}text")]
    titles = [each.text for each in root.iter("{http://www.w3.org/2000/svg}title")]
    assert texts[0] == "seed <7>"
    assert {"node 0", "node 1", "node 2", "shared"} <= set(texts)
    assert set(titles) >= {line for line in TRACE if " log " not in line}


def test_an_empty_trace_is_a_picture_too():
    assert ElementTree.fromstring(as_svg("nothing", ())) is not None
