"""Interrupts at every line of some modules, one run each."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection
from concurrent import futures
from contextlib import suppress
from pathlib import Path
from types import FrameType
from typing import Any

_FUTURES = str(Path(futures.__file__).with_name("_base.py"))


def interrupt_at_each_line(run: Callable[[], None], files: Collection[str] = (_FUTURES,)) -> int:
    """Calls `run` until this thread has got through all lines of `files`, by default of futures; returns how often.

    The first call is interrupted (KeyboardInterrupt) before the first such line, the next before the second, and so on.
    """
    calls, interrupted = 0, True
    while interrupted:
        interrupted = _is_interrupted(run, calls, files)
        calls += 1
    return calls


def _is_interrupted(run: Callable[[], None], lines: int, files: Collection[str]) -> bool:
    left = lines

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal left
        if frame.f_code.co_filename not in files:
            return None
        if event == "line":
            left -= 1
        if left < 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    previous = sys.gettrace()
    sys.settrace(trace)
    try:
        with suppress(KeyboardInterrupt):
            run()
    finally:
        sys.settrace(previous)
    return left < 0
