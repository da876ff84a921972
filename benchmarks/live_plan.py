"""Time and memory of the plan of live staging for 10,000 nodes and a million shards: homes, order, lost nodes.

python benchmarks/live_plan.py
"""

from __future__ import annotations

import random
import resource
import time
from collections.abc import Callable
from typing import TypeVar

from dlio.stage.planning.homes import assign_first, home_now, order_alone
from dlio.stage.planning.plan import kept_shards

NODES, SHARDS, NODE = 10_000, 1_000_000, 77
Result = TypeVar("Result")


def timed(name: str, work: Callable[[], Result]) -> Result:
    """Returns what `work` does, and prints its processor time."""
    began = time.process_time()
    result = work()
    print(f"{name:32} {time.process_time() - began:6.2f} s")
    return result


def main() -> None:
    """Prints the figures."""
    sizes = [random.Random(shard).randrange(200 << 20, 300 << 20) for shard in range(SHARDS)]
    placed = timed("homes of all shards", lambda: assign_first(sizes, NODES))
    timed("order of one node", lambda: order_alone(placed, NODE, NODES))
    timed("what fits into 1 TiB", lambda: kept_shards(sizes, placed, NODE, NODES, 1 << 40))
    lost = set(range(0, NODES, 100))
    moved = [(shard, home) for shard, home in enumerate(placed) if home in lost]
    timed(f"new homes of {len(moved):,} shards", lambda: [home_now(*each, NODES, lost.__contains__) for each in moved])
    print(f"memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 10} MB, with the sizes")


if __name__ == "__main__":
    main()
