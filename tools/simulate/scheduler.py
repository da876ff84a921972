"""The scheduler of a simulation: virtual time, and the next task to run, both decided by a seed.

Tasks are greenlets: plain blocking code, which is switched where it waits. Time is an integer of nanoseconds that only
continues when every task waits. Of what is due at one instant, the seed decides who goes first.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from heapq import heappop, heappush
from typing import Any

from dlio.errors import DlioError
from tools.simulate.chance import Chance
from tools.simulate.process import GreenletExit, Process, Task, greenlet

US, MS, S = 1_000, 1_000_000, 1_000_000_000  # ns

_MOST_AT_ONCE = 200_000  # events at one instant: no task waits for anything any more
_LONGEST_PAUSE = 50 * US  # of a thread that loses its processor
_HASHED = 256  # notes hashed at once
_FOR_EVER = 1 << 62  # ns


class LivelockError(DlioError):
    """Tasks run forever without waiting for anything."""


class Scheduler:
    """Runs tasks in virtual time; for one thread of Python.

    Args:
        seed: decides everything that chance decides.
        keep: keep the trace's lines in `trace`, too, and not only their digest.

    Attributes:
        now: ns since the schedule began.
        current: the task that runs; None in what `call_at` calls.
        events: how many there have been.
        failed: the tasks that ended by an exception.
        eagerness: how often others continue first where a thread may lose its processor, from 0 to 1; not 0 at the end.
    """

    def __init__(self, seed: int, *, keep: bool = False) -> None:
        self.seed, self.now, self.events, self.eagerness = seed, 0, 0, 0.0
        self.current: Task | None = None
        self.failed: list[Task] = []
        self.processes: list[Process] = []
        self.trace: list[str] | None = [] if keep else None
        self._order = Chance(seed, "order").fraction
        self._heap: list[tuple[int, float, int, Any, int]] = []
        self._at_events: list[tuple[int, int, Callable[[], object]]] = []
        self._number = 0
        self._hub = greenlet.getcurrent()
        self._is_over = self._is_halted = False
        self._until = _FOR_EVER
        self._digest, self._notes = blake2b(digest_size=16), list[str]()

    def process(self, node: int, pid: int, boot: str, host: str, life: int) -> Process:
        """Returns a new process; see there."""
        process = Process(self, node, pid, boot, host, life)
        self.processes.append(process)
        return process

    def spawn(self, process: Process, call: Callable[[], object], name: str) -> Task:
        """Returns a task of a process that makes a call, from now on."""
        self.check()
        task = Task(process, call, name)
        process.tasks[task] = None
        task.runner = greenlet(self._life(task), self._hub)
        self._push(self.now, task)
        return task

    def _life(self, task: Task) -> Callable[[], None]:
        def live() -> None:
            try:
                task.call()
            except GreenletExit:
                return
            except BaseException as error:
                task.error = error
                self.failed.append(task)
                self.note("failed", task, type(error).__name__)
            task.has_ended = True
            for other in task.waiting:
                self.wake(other)

        return live

    def _push(self, time: int, task: Task) -> None:
        self._number = number = self._number + 1
        heappush(self._heap, (time, self._order(), number, task, task.turn))

    def call_at(self, time: int, call: Callable[[], object]) -> None:
        """Schedules a call at a time, in ns; calls at one instant run in the order of scheduling, and before tasks."""
        self._number += 1
        heappush(self._heap, (max(time, self.now), -1.0, self._number, call, -1))

    def call_at_event(self, number: int, call: Callable[[], object]) -> None:
        """Schedules a call before the event of a number, if there is one."""
        heappush(self._at_events, (number, len(self._at_events), call))

    def go_on(self, task: Task, turn: int) -> None:
        """Continues a task that was held, if it still waits as it did."""
        if task.turn == turn:
            self._push(self.now, task)

    def check(self) -> None:
        """Raises GreenletExit once the schedule is over: called first by whatever a task can call."""
        if self._is_over:
            raise GreenletExit

    def leave_the_dead(self) -> None:
        """Does not return if the present task's process is dead."""
        if self.current and self.current.process.is_dead:
            self._switch(self.current)

    def below(self, limit: int) -> int:
        """Returns an integer in [0, limit), drawn for the order of things."""
        return int(self._order() * limit)

    def pass_by(self) -> None:
        """Checks, and lets others continue first now and then: called if eager, where a thread may be interrupted."""
        self.check()
        if self.current and self._order() < self.eagerness:
            self.pause(self.below(_LONGEST_PAUSE))

    def _switch(self, task: Task) -> None:
        """Lets others run."""
        if self._is_over:
            raise GreenletExit
        self._hub.switch()
        while task.process.is_dead:  # pragma: no cover - `run` does not run it
            self._hub.switch()

    def _is_next(self, task: Task, time: int) -> bool:
        """Continues to a time if the present task is the only one that runs until then, and spares two switches."""
        heap = self._heap
        while heap and heap[0][0] <= time:
            _, _, _, due, turn = heap[0]
            if turn < 0 or (due.turn == turn and not due.process.is_dead):
                return False
            heappop(heap)  # void
        is_told = self._at_events and self._at_events[0][0] <= self.events
        if is_told or self._is_halted or self._is_over or time <= self.now or time > self._until:
            return False
        if task.process.is_dead or task.process.is_stopped:
            return False
        self.now = time
        self.events += 1
        task.turn += 1
        return True

    def pause(self, ns: int) -> None:
        """Makes the present task wait for this long; 0 may let others go first."""
        task = self.current
        assert task, "only a task can wait"
        if self._is_next(task, self.now + ns):
            return
        if not task.process.is_dead:
            task.turn += 1
            self._push(self.now + ns, task)
        self._switch(task)

    def park(self, timeout: int | None = None) -> bool:
        """Makes the present task wait until it is woken, or for this many ns; returns whether it was woken."""
        task = self.current
        assert task, "only a task can wait"
        if timeout is not None and self._is_next(task, self.now + timeout):
            return False
        task.turn += 1
        task.is_woken, task.is_parked = False, True
        if timeout is not None and not task.process.is_dead:
            self._push(self.now + timeout, task)
        self._switch(task)
        task.is_parked = False
        return task.is_woken

    def wake(self, task: Task) -> None:
        """Ends the wait of a task that is parked; of any other nothing."""
        if task.is_parked and not task.is_woken:
            task.is_woken = True
            self._push(self.now, task)

    def join(self, task: Task, timeout: int | None = None) -> bool:
        """Waits for the end of a task; returns whether it has ended."""
        self.check()
        if not task.has_ended:
            assert self.current
            task.waiting.append(self.current)
            self.park(timeout)
            task.waiting.remove(self.current)
        return task.has_ended

    def note(self, *fields: object) -> None:
        """Adds a line to the trace: the time, the present task, and fields that are the same in every run."""
        line = f"{self.now} {self.current.label if self.current else '-'} {' '.join(map(str, fields))}"
        self._notes.append(line)
        if self.trace is not None:
            self.trace.append(line)
        if len(self._notes) >= _HASHED:
            self._hash()

    def _hash(self) -> None:
        if self._notes:
            self._digest.update(("\n".join(self._notes) + "\n").encode())
            self._notes.clear()

    def digest(self) -> str:
        """Returns the digest of the trace so far, 32 hexadecimal digits."""
        self._hash()
        return self._digest.hexdigest()

    def halt(self) -> None:
        """Makes `run` return after the present event."""
        self._is_halted = True

    def run(self, until: int | None = None) -> bool:
        """Runs events until a time in ns, until `halt`, or until none is left; returns whether one is left.

        Raises:
            LivelockError: time does not continue.
        """
        heap, at_once, self._is_halted = self._heap, 0, False
        self._hub, self._until = greenlet.getcurrent(), _FOR_EVER if until is None else until
        while heap and not self._is_halted:
            while self._at_events and self._at_events[0][0] <= self.events:
                heappop(self._at_events)[2]()
            time, _, _, due, turn = heap[0]
            if time > self._until:
                self.now = self._until
                return True
            heappop(heap)
            if turn < 0:
                self.events += 1
            elif due.turn != turn or due.process.is_dead:
                self.now = time
                continue
            at_once = at_once + 1 if time == self.now else 0
            if at_once > _MOST_AT_ONCE:
                raise LivelockError(f"seed {self.seed}: {due} and others run without waiting at {time} ns")
            self.now = time
            if turn < 0:
                due()
            elif due.process.is_stopped:
                due.process.held.append((due, turn))
            else:
                self.events += 1
                due.turn += 1  # what else would wake it is void
                self.current = due
                due.runner.switch()
                self.current = None
                if due.has_ended:
                    due.runner = None
                    due.process.tasks.pop(due, None)
        return bool(heap)

    def end(self) -> None:
        """Ends all tasks, to free them: now `finally` blocks run, in a world where every call raises GreenletExit."""
        self._is_over, self.eagerness = True, 1.0
        for process in self.processes:
            for task in process.tasks:
                runner, task.runner = task.runner, None
                if runner is not None:
                    self.current = task
                    runner.throw(GreenletExit)
        self.current = None
        self._heap.clear()
