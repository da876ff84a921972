"""Starts the processes of broadcasts over gloo, from one process that has imported torch and dlio for all of them.

Each line of its input is a job: a JSON object of the arguments of broadcast_rank.py, the numbers of all processes and
of those on a node, the environment, and a folder for what the job says, `said`, and its end, `ended`. The processes of
a job are forked and know MASTER_ADDR. With AGENT_STORE in the environment, their parent serves the store, as torchrun's
agent does.
"""

from __future__ import annotations

import ctypes
import json
import os
import runpy
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import NoReturn

import torch.distributed

import dlio.stage.run  # noqa: F401  once for all processes
from dlio.stage import strategies

CLONE_NEWUTS = 0x04000000  # a host name of its own


def run_job(arguments: list[str], size: int, per_node: int, environ: dict[str, str]) -> None:
    """Returns when all processes of a job have ended."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    os.environ.clear()
    os.environ |= environ | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size)}
    served = "AGENT_STORE" in os.environ
    if served:
        os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "True"
    for rank in range(size):
        if os.fork() == 0:
            if served:
                os.environ["LOCAL_RANK"] = str(rank % per_node)
            run_rank(rank, f"node{rank // per_node}", arguments)
    store = torch.distributed.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False) if served else None
    for _ in range(size):
        os.wait()
    del store


def run_rank(rank: int, host: str, arguments: list[str]) -> NoReturn:
    """Runs broadcast_rank.py, and ends without the end of the interpreter, which takes a second with torch in it."""
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


def fork_job(folder: str, **job: object) -> None:
    """Starts a job in a process of its own."""
    if os.fork():
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    said = os.open(f"{folder}/said", os.O_WRONLY | os.O_CREAT)
    os.dup2(said, 1)
    os.dup2(said, 2)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    code = 1
    try:
        run_job(**job)
        code = 0
    except Exception:
        traceback.print_exc()
    finally:
        Path(folder, ".ended").write_text(str(code))
        Path(folder, ".ended").rename(Path(folder, "ended"))
        os._exit(code)


for strategy in strategies.names():
    strategies.load(strategy)
signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # so that jobs leave no zombies
for line in sys.stdin:
    fork_job(**json.loads(line))
