"""A rank of a job that stages live: reads all samples twice, in its own order, and compares each with the source.

Arguments: the data set's URL, DEST, the strategy, and the folder that the URL serves.
"""

from __future__ import annotations

import random
import sys
import time
from contextlib import closing
from pathlib import Path

from dlio.cluster.topology import Topology
from dlio.loaders.dataset import PackedSamples
from dlio.stage.client.start import ensure_agent

BATCH = 16

if __name__ == "__main__":
    url, dest, strategy, folder = sys.argv[1:]
    topology = Topology.from_env()
    Path(dest).mkdir(exist_ok=True)
    ensure_agent(url, dest, strategy=strategy, topology=topology)
    choose = random.Random(topology.rank)
    with closing(PackedSamples(url)) as samples, closing(PackedSamples(folder)) as truth:
        for _ in range(2):
            order = choose.sample(range(len(samples)), len(samples))
            for first in range(0, len(order), BATCH):
                batch = order[first : first + BATCH]
                if samples.read(batch) != truth.read(batch):
                    sys.exit(f"rank {topology.rank} got wrong samples among {batch}")
                time.sleep(0.01)
