"""The code that runs in a simulation: processes of nodes, and their threads, each a greenlet."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from dlio.errors import MissingError

if TYPE_CHECKING:
    from tools.simulate.clock import Clock
    from tools.simulate.scheduler import Scheduler

try:
    from greenlet import GreenletExit, greenlet
except ImportError as error:  # pragma: no cover
    raise MissingError("the simulator needs the package greenlet: pip install 'greenlet>=3.1'") from error

__all__ = ["GreenletExit", "Process", "Task", "greenlet"]


class Task:
    """A thread of a process.

    Attributes:
        process: it belongs to.
        name: of it.
        label: shown in the trace: its process and its name.
        turn: counts how often it went to wait; what would wake it for an earlier wait is void.
        is_woken: whether `Scheduler.wake` ended its last wait, or is about to.
        has_ended: its call has returned, or raised `error`.
        waiting: the tasks that wait for its end.
    """

    __slots__ = (
        "call", "error", "has_ended", "is_parked", "is_woken", "label", "name", "process", "runner", "turn",
        "waiting",
    )  # fmt: skip

    def __init__(self, process: Process, call: Callable[[], object], name: str) -> None:
        self.process, self.call, self.name, self.label = process, call, name, f"{process}/{name}"
        self.turn, self.is_woken, self.is_parked, self.has_ended = 0, False, False, False
        self.error: BaseException | None = None
        self.waiting: list[Task] = []
        self.runner: greenlet | None = None

    def __str__(self) -> str:
        return self.label


class Process:
    """A process of a node: one life, which ends once.

    A killed one runs nothing more: its tasks never run again, no `finally` and no `except` of theirs either, and what a
    task calls after its process has been killed by itself does not return.

    Args:
        scheduler: that runs it.
        node: its number.
        pid: unique among the living of a node.
        boot: identifies this run of the node's system.
        host: the node's name.
        life: counts the processes of a schedule that had this place; told apart by it where pids come again.

    Attributes:
        clock: of its node, if it lives in a `SimulatedWorld`.
    """

    clock: Clock

    def __init__(self, scheduler: Scheduler, node: int, pid: int, boot: str, host: str, life: int) -> None:
        self._scheduler = scheduler
        self.node, self.pid, self.boot, self.host, self.life = node, pid, boot, host, life
        self.began = scheduler.now  #: ns, its start time
        self.environ: dict[str, str] = {}
        self.is_dead = self.is_stopped = False
        self.ended = 0  #: ns, if it is dead
        self.tasks: dict[Task, None] = {}  #: until they end: greenlets that nobody references would be ended properly
        self.held: list[tuple[Task, int]] = []  #: those that would have run while it is stopped
        self.at_death: list[Callable[[], object]] = []  #: what the system does then: closes its sockets

    def __str__(self) -> str:
        return f"{self.node}.{self.pid}.{self.life}"

    def has_ended_by(self, at: int) -> bool:
        """Returns whether it had ended at a time, in ns."""
        return self.is_dead and self.ended <= at

    def kill(self) -> None:
        """Ends it at once, as SIGKILL does; from one of its own tasks this does not return."""
        if not self.is_dead:
            self.is_dead, self.ended = True, self._scheduler.now
            self._scheduler.note("kill", self)
            for call in self.at_death:
                call()
            self._scheduler.leave_the_dead()

    def stop(self) -> None:
        """Stops it, as SIGSTOP does: nothing of it runs until `resume`, and time goes by."""
        if not (self.is_dead or self.is_stopped):
            self.is_stopped = True
            self._scheduler.note("stop", self)

    def resume(self) -> None:
        """Lets it continue, as SIGCONT does."""
        if self.is_stopped and not self.is_dead:
            self.is_stopped = False
            self._scheduler.note("resume", self)
            held, self.held = self.held, []
            for task, turn in held:
                self._scheduler.go_on(task, turn)
