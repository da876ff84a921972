"""The number of cores is what this process may use, not what the machine has."""

from __future__ import annotations

import os
import subprocess
import sys

from dlio.cluster.cpu_count import num_usable_cores


def test_it_is_within_the_affinity_mask():
    assert 1 <= num_usable_cores() <= len(os.sched_getaffinity(0))


def test_a_process_bound_to_one_core_has_one():
    core = min(os.sched_getaffinity(0))
    code = f"import os; os.sched_setaffinity(0, [{core}]); from dlio.cluster import cpu_count"
    code += "; print(cpu_count.num_usable_cores())"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "1\n"
