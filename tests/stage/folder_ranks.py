"""Starts the processes of a job whose nodes meet in a folder: `folder_ranks.py SIZE PER_NODE ARGUMENTS...`.

The arguments are those of broadcast_rank.py. The processes are forked from this one, which has dlio already
(fork_server.py), and know their numbers as from torchrun; with UNNUMBERED in the environment their ranks only.
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

CLONE_NEWUTS = 0x04000000  # its own host name


def run_rank(rank: int, node: int, arguments: list[str]) -> NoReturn:
    """Runs broadcast_rank.py, and ends without the end of the interpreter."""
    try:
        if ctypes.CDLL(None, use_errno=True).unshare(CLONE_NEWUTS):
            raise OSError(ctypes.get_errno(), "unshare")
        socket.sethostname(f"node{node}")
        os.environ["RANK"] = str(rank)
        if "UNNUMBERED" not in os.environ:
            os.environ |= {"LOCAL_RANK": str(rank % per_node), "LOCAL_WORLD_SIZE": str(per_node)}
            os.environ |= {"GROUP_RANK": str(node), "GROUP_WORLD_SIZE": str(size // per_node)}
        sys.argv[1:] = arguments
        runpy.run_path(str(Path(__file__).with_name("broadcast_rank.py")), run_name="__main__")
    except Exception:
        traceback.print_exc()
    finally:
        os._exit(0)


size, per_node = map(int, sys.argv[1:3])
os.environ["WORLD_SIZE"] = str(size)
for rank in range(size):
    if os.fork() == 0:
        run_rank(rank, rank // per_node, sys.argv[3:])
for _ in range(size):
    os.wait()
