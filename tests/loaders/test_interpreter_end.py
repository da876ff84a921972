"""Loaders and readers that are open when the interpreter ends: nothing is printed, and nothing hangs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from dlio.dataset.manifest import Manifest

#: A module that compiled code holds, as JAX does, is cleared last, when others have lost their names already.
#: What dlio does at the exit comes before what was registered earlier.
SCRIPT = """
import atexit, ctypes, os, sys, threading, time
last = []
atexit.register(lambda: [call() for call in last])
from dlio.dataset.manifest import Manifest
from dlio.dataset.reader import ShardReader
from dlio.images import Resize
from dlio.loaders.batch_sources import ArrayBatches
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.loader import Loader

manifest = Manifest.load(sys.argv[1])
ctypes.pythonapi.Py_IncRef(ctypes.py_object(sys.modules["__main__"]))

def begun():
    samples = PackedSamples(manifest, Resize(16))
    loader = Loader(ArrayBatches(samples), 4, rank_and_size=lambda: (0, 1), num_workers=2)
    batches = iter(loader)
    next(batches)
    return loader, batches

"""
ENDS = {
    "iteration": "kept = begun()",
    "reader": "kept = ShardReader(manifest, manifest.shards[0]); kept.read(0)",
    "thread": """
began = threading.Event()
def run():
    global kept
    kept = loader, batches = begun()
    began.set()
    while True:
        for _ in batches:
            pass
        batches = iter(loader)
threading.Thread(target=run, daemon=True).start()
began.wait()
last.append(lambda: time.sleep(0.2))
""",
    "fork": """
kept = begun()
child = os.fork()
if child:
    assert os.waitpid(child, 0)[1] == 0
""",
    "error": "kept = begun(); sys.exit(0)",
}


@pytest.mark.parametrize("end", ENDS)
def test_open_loaders_end_with_the_interpreter_in_silence(packed: Manifest, end: str) -> None:
    command = [sys.executable, "-c", SCRIPT + ENDS[end], str(packed.root)]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
