"""A store whose node is lost: the calls end, and none waits as long again as the heartbeat has waited already."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from datetime import timedelta

import pytest

from dlio.cluster import liveness
from dlio.stage.comm import base
from dlio.stage.comm.torch_store import LiveStore

torch = pytest.importorskip("torch.distributed", reason="needs torch: pip install torch")

SERVER = """
import sys, time, torch.distributed as torch
store = torch.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
print(store.port, flush=True)
sys.stdin.read()
"""


def test_a_silent_store_is_given_up_soon_after_the_heartbeat_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-c", SERVER]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdin is not None and server.stdout is not None
        store = torch.TCPStore("127.0.0.1", int(server.stdout.readline()), timeout=timedelta(seconds=60))
        live = LiveStore(store, rank=1, size=2)
        assert live.beat(1) >= 1
        os.kill(server.pid, signal.SIGSTOP)
        time.sleep(0.5)  # for an answer on its way
        try:
            monkeypatch.setattr(liveness, "LOST_SECONDS", 600.0)
            live._answered -= 590  # as if its heartbeats had been unanswered for so long
            began = time.monotonic()
            with pytest.raises(base.LostError, match="silent"):
                live.call("check", ["left/0"])
            assert time.monotonic() - began < 300
            with pytest.raises(base.LostError):  # at once: nobody waits twice
                live.call("check", ["left/0"])
            live.leave(serves=False)
        finally:
            os.kill(server.pid, signal.SIGCONT)
            server.stdin.close()
