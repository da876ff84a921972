"""Starts the processes of a broadcast over gloo: `gloo_ranks.py SIZE PER_NODE ARGUMENTS...`.

The arguments are those of broadcast_rank.py. The processes are forked from one that has imported torch and dlio
already, and know MASTER_ADDR. With AGENT_STORE in the environment this one serves the store there, as torchrun's agent.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import socket
import sys
from pathlib import Path

import torch.distributed

import dlio.stage.run  # noqa: F401  once for all processes
from dlio.stage import strategies

CLONE_NEWUTS = 0x04000000  # a host name of its own

for strategy in strategies.names():
    strategies.load(strategy)
size, per_node = map(int, sys.argv[1:3])
with socket.socket() as probe:
    probe.bind(("127.0.0.1", 0))
    port = probe.getsockname()[1]
os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
served = "AGENT_STORE" in os.environ
if served:
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
for rank in range(size):
    if os.fork() == 0:
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUTS):
            raise OSError(ctypes.get_errno(), "unshare")
        socket.sethostname(f"node{rank // per_node}")
        os.environ["RANK"] = str(rank)
        if served:
            os.environ["LOCAL_RANK"] = str(rank % per_node)
        del sys.argv[1:3]
        runpy.run_path(str(Path(__file__).with_name("broadcast_rank.py")), run_name="__main__")
        sys.exit()
store = torch.distributed.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False) if served else None
for _ in range(size):
    os.wait()
