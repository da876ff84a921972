"""Starts the processes of a broadcast over gloo: `gloo_ranks.py SIZE PER_NODE ARGUMENTS...`.

The arguments are those of broadcast_rank.py. The processes are forked from this one, which has torch and dlio already
(fork_server.py), and know MASTER_ADDR. With AGENT_STORE in the environment this one serves the store there, as
torchrun's agent.
"""

from __future__ import annotations

import ctypes
import os
import runpy
import socket
import sys
import traceback
from pathlib import Path
from typing import NoReturn

import torch.distributed

CLONE_NEWUTS = 0x04000000  # a host name of its own


def run_rank(rank: int, host: str, arguments: list[str]) -> NoReturn:
    """Runs broadcast_rank.py, and ends without the end of the interpreter."""
    try:
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUTS):
            raise OSError(ctypes.get_errno(), "unshare")
        socket.sethostname(host)
        os.environ["RANK"] = str(rank)
        sys.argv[1:] = arguments
        runpy.run_path(str(Path(__file__).with_name("broadcast_rank.py")), run_name="__main__")
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(0)


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
        if served:
            os.environ["LOCAL_RANK"] = str(rank % per_node)
        run_rank(rank, f"node{rank // per_node}", sys.argv[3:])
store = torch.distributed.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False) if served else None
for _ in range(size):
    os.wait()
