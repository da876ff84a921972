"""Locks, conditions, events and threads of a simulated process; the seed draws the order of wakes."""

from __future__ import annotations

from typing import Any

from tools.simulate.clock import Clock
from tools.simulate.process import Task
from tools.simulate.scheduler import Scheduler


class Waiting:
    """Tasks that wait for the same event; a random one is woken."""

    __slots__ = ("_scheduler", "tasks")

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self.tasks: list[Task] = []

    def wait(self, timeout: int | None = None) -> bool:
        """Makes the present task wait, at most this many ns; returns whether it was woken."""
        task = self._scheduler.current
        assert task
        self.tasks.append(task)
        if self._scheduler.park(timeout):
            return True
        self.tasks.remove(task)
        return False

    def wake(self, count: int = 1) -> None:
        """Wakes this many."""
        tasks = self.tasks
        while tasks and count:
            count -= 1
            self._scheduler.wake(tasks.pop(self._scheduler.below(len(tasks)) if len(tasks) > 1 else 0))

    def wake_all(self) -> None:
        """Wakes all of them; what is due at one instant runs in a drawn order."""
        if self.tasks:
            tasks, self.tasks = self.tasks, []
            for task in tasks:
                self._scheduler.wake(task)


class SimLock:
    """A `Lock`."""

    def __init__(self, scheduler: Scheduler, clock: Clock) -> None:
        self._scheduler, self._clock = scheduler, clock
        self._is_held, self._waiting = False, Waiting(scheduler)

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Takes it; see `threading.Lock`."""
        scheduler = self._scheduler
        if scheduler.eagerness:
            scheduler.pass_by()
        if not self._is_held:
            self._is_held = True
            return True
        if not blocking:
            return False
        deadline = None if timeout < 0 else scheduler.now + (self._clock.ns(timeout) or 0)
        while self._is_held:
            if deadline is not None and scheduler.now >= deadline:
                return False
            self._waiting.wait(None if deadline is None else deadline - scheduler.now)
        self._is_held = True
        return True

    def release(self) -> None:
        """Gives it back; see `threading.Lock`."""
        if not self._is_held:
            raise RuntimeError("release unlocked lock")
        self._is_held = False
        if self._waiting.tasks:
            self._waiting.wake()

    def locked(self) -> bool:
        """Returns whether somebody has it."""
        return self._is_held

    def __enter__(self) -> bool:
        if self._is_held or self._scheduler.eagerness:
            return self.acquire()
        self._is_held = True
        return True

    def __exit__(self, *_: Any) -> None:
        if self._waiting.tasks or not self._is_held:
            self.release()
        self._is_held = False


class SimCondition(SimLock):
    """A `Condition`."""

    def __init__(self, scheduler: Scheduler, clock: Clock) -> None:
        super().__init__(scheduler, clock)
        self._noticed = Waiting(scheduler)

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for a notice; see `threading.Condition`."""
        if not self._is_held:
            raise RuntimeError("cannot wait on un-acquired lock")
        self.release()
        try:
            return self._noticed.wait(self._clock.ns(timeout))
        finally:
            self.acquire()

    def notify(self, n: int = 1) -> None:
        """Wakes some; see `threading.Condition`."""
        self._check()
        self._noticed.wake(n)

    def notify_all(self) -> None:
        """Wakes all; see `threading.Condition`."""
        self._check()
        self._noticed.wake_all()

    def _check(self) -> None:
        self._scheduler.check()
        if not self._is_held:
            raise RuntimeError("cannot notify on un-acquired lock")


class SimSemaphore:
    """A `Semaphore`, in a `with` statement."""

    def __init__(self, scheduler: Scheduler, clock: Clock, count: int) -> None:
        self._free, self._changed = count, SimCondition(scheduler, clock)

    def __enter__(self) -> None:
        with self._changed:
            while not self._free:
                self._changed.wait()
            self._free -= 1

    def __exit__(self, *_: Any) -> None:
        with self._changed:
            self._free += 1
            self._changed.notify()


class SimEvent:
    """An `Event`."""

    def __init__(self, scheduler: Scheduler, clock: Clock) -> None:
        self._scheduler, self._clock = scheduler, clock
        self._is_set, self._waiting = False, Waiting(scheduler)

    def is_set(self) -> bool:
        """Returns whether it is set; see `threading.Event`."""
        self._scheduler.check()
        return self._is_set

    def set(self) -> None:
        """Sets it, and wakes all that wait; see `threading.Event`."""
        self._scheduler.check()
        self._is_set = True
        self._waiting.wake_all()

    def clear(self) -> None:
        """Takes the setting back; see `threading.Event`."""
        self._scheduler.check()
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Waits until it is set; see `threading.Event`."""
        if self._scheduler.eagerness:
            self._scheduler.pass_by()
        if not self._is_set:
            self._waiting.wait(self._clock.ns(timeout))
        return self._is_set


class SimThread:
    """A `Thread`."""

    def __init__(self, scheduler: Scheduler, clock: Clock, task: Task) -> None:
        self._scheduler, self._clock, self.task = scheduler, clock, task
        self.name = task.name

    def join(self, timeout: float | None = None) -> None:
        """Waits for its end; see `threading.Thread`."""
        self._scheduler.join(self.task, self._clock.ns(timeout))

    def is_alive(self) -> bool:
        """Returns whether it runs still; see `threading.Thread`."""
        self._scheduler.check()
        return not self.task.has_ended
