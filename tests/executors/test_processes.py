"""Forked workers: a signal that comes while they are forked is handled after that, and not dropped."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from dlio.executors import processes

_senders: list[tuple[threading.Event, threading.Thread]] = []


def _signal_another_thread() -> None:
    """Sends a signal to a thread that blocks none, at the moment when Python drops what its handler raises."""
    for forked, sender in _senders:
        forked.set()
        sender.join()


os.register_at_fork(after_in_parent=_signal_another_thread)


def test_an_interrupt_during_the_fork_of_workers_is_not_lost():
    forked = threading.Event()

    def send() -> None:
        forked.wait()
        os.kill(os.getpid(), signal.SIGINT)

    sender = threading.Thread(target=send)
    sender.start()
    _senders.append((forked, sender))
    with pytest.raises(KeyboardInterrupt), processes.open(1, None) as pool:
        pool.executor.submit(os.getpid)
    _senders.clear()
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
