"""A Spark cluster: a running one, or processes of this machine for the time of the run.

    dlio pack photos packed --format tfrecord --engine spark --engine-address spark://head:7077

All nodes of a cluster need dlio, this Python and the same paths. The engine needs a Java (17 for Spark 4), which starts
in some seconds and ends with the run. A session of this process, as under `spark-submit` or in a notebook, is used, and
stays open. Spark started here listens on 127.0.0.1, and asks for a random secret.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import socket
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import BrokenExecutor, Executor, Future
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dlio.errors import LauncherError, UsageError, needs_package
from dlio.executors import Pool, num_workers, refuse_workers
from dlio.io.threads import Threads
from dlio.urls import without_credentials

if TYPE_CHECKING:
    from pyspark import SparkContext

CONNECT_SECONDS = 30.0
T = TypeVar("T")
_END_SECONDS = 10.0
_SETTLED_SECONDS = 1.0  # without a new core
_ADDRESS = r"local\[.+\]|local-cluster\[.+\]|spark://.+|yarn|k8s://.+"
_LIGHT = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # a Java that only hands out plans starts in half of the CPU time
_ALWAYS = {
    "spark.app.name": "dlio",
    "spark.log.level": "OFF",
    "spark.speculation": "false",
    "spark.task.maxFailures": "1",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
_ON_THIS_MACHINE = {
    "spark.authenticate": "true",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.host": "127.0.0.1",
    "spark.executor.extraJavaOptions": _LIGHT,
}
_JAVA = {"spark.driver.memory": "512m", "spark.driver.extraJavaOptions": _LIGHT}


class WorkerLostError(Exception):
    """The process that ran a task has ended."""


@contextmanager
def open(workers: int | None, address: str | None) -> Iterator[Pool]:  # noqa: A001  the contract's word
    """Yields the cores of the cluster at `address`, or `workers` new processes, by default one for each core.

    Raises:
        UsageError: an invalid address, or both a cluster and a number of workers.
        LauncherError: there is no Java, no cluster at the address, or it has no core free within 30 s.
        MissingPackageError: pyspark is not installed.
    """
    if address is not None:
        refuse_workers("spark", workers, f"the cluster at {address}")
    with needs_package("pyspark", "spark", "the engine spark"):
        from pyspark import SparkContext
    in_use: SparkContext | None = SparkContext._active_spark_context
    if in_use is not None:
        refuse_workers("spark", workers, "the session in use")
    context: Any = in_use or _start(address or f"local[{num_workers(workers)}]")
    executor = _SparkExecutor(context)
    try:
        count = context.defaultParallelism if context.master.startswith("local[") else _num_cores(executor)
        executor.threads.grow(count)
        yield Pool(executor, count, (WorkerLostError, BrokenExecutor))
    finally:
        executor.shutdown()
        if in_use is None:
            _end(context)
        executor.threads.end(_END_SECONDS)


def _start(master: str) -> SparkContext:
    """Returns a new context. Java prints nothing to the console; if it does not start, the error shows the reason."""
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    _check(master)
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    is_here = master.startswith("local")
    secret = {"spark.authenticate.secret": secrets.token_hex(32)}
    options = _ALWAYS | (_ON_THIS_MACHINE | secret if is_here else {})
    with tempfile.TemporaryFile() as printed:
        try:
            on_command_line = SparkConf(loadDefaults=False).setAll([*_JAVA.items()]) if is_here else None
            gateway = launch_gateway(on_command_line, {"stdout": printed, "stderr": printed})
            return SparkContext(master, conf=SparkConf().setAll([*options.items()]), gateway=gateway)
        except Exception as error:
            printed.seek(0)
            lines = [*str(error).splitlines(), *printed.read().decode(errors="replace").splitlines()]
            reason = next((line for line in lines if "Exception:" in line or "ERROR" in line), lines[0])
    raise LauncherError(f"Spark does not start at {master}: {without_credentials(reason, master)}")


def _check(master: str) -> None:
    """Checks what can be checked without starting Java, which takes long, and long to give up."""
    if not re.fullmatch(_ADDRESS, master):
        raise UsageError(
            f"{master!r} is not an address of Spark: expected spark://HOST:7077, yarn, k8s://... or local[2]"
        )
    home = os.environ.get("JAVA_HOME")
    if not (Path(home, "bin/java").exists() if home else shutil.which("java")):
        raise LauncherError(
            "the engine spark needs Java: apt-get install openjdk-17-jre-headless, or correct JAVA_HOME"
        )
    if master.startswith("spark://") and not any(map(_answers, master.removeprefix("spark://").split(","))):
        raise LauncherError(f"no Spark master answers at {master}: start one, or correct --engine-address")


def _answers(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), CONNECT_SECONDS).close()
    except (OSError, ValueError):
        return False
    return True


def _num_cores(executor: _SparkExecutor) -> int:
    """Returns the number of cores of a cluster once it has some and no more are coming; raises LauncherError."""
    executor.threads.grow(1)
    try:
        executor.submit(os.getpid).result(CONNECT_SECONDS)
    except TimeoutError:
        advice = "start workers, or let them have more cores and memory"
        raise LauncherError(f"the Spark cluster at {executor.context.master} has no free core: {advice}") from None
    count, before = executor.context.defaultParallelism, 0
    while count != before:
        time.sleep(_SETTLED_SECONDS)
        count, before = executor.context.defaultParallelism, count
    return int(count)


def _end(context: SparkContext) -> None:
    """Ends the context, and the Java that was started for it."""
    from pyspark import SparkContext

    gateway: Any = SparkContext._gateway
    with suppress(Exception):  # it has ended already
        context.stop()
    SparkContext._gateway = SparkContext._jvm = None
    with suppress(Exception):
        gateway.shutdown()
    with suppress(Exception):
        gateway.proc.stdin.close()  # on which it ends
        gateway.proc.wait(_END_SECONDS)


class _SparkExecutor(Executor):
    """Hands each task to Spark as its own job, by threads that wait for it; a submitted task cannot be cancelled.

    Attributes:
        context: Spark's.
        threads: as many as tasks run at a time.
    """

    def __init__(self, context: SparkContext) -> None:
        self.context = context
        self.threads = Threads(0, "dlio-spark")
        self._group = f"dlio-{uuid.uuid4()}"

    def submit(self, fn: Callable[..., T], /, *args: object, **kwargs: object) -> Future[T]:
        from pyspark import cloudpickle

        return self.threads.submit(partial(self._run, cloudpickle.dumps((fn, args, kwargs))))

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the running tasks, and drops the others."""
        self.threads.stop()
        with suppress(Exception):  # it has ended
            self.context.cancelJobGroup(self._group)

    def _run(self, call: bytes) -> Any:
        """Returns the result of a call, or raises what it raised; WorkerLostError or BrokenExecutor if it was lost."""
        from pyspark import cloudpickle

        try:
            self.context.setJobGroup(self._group, "dlio", interruptOnCancel=True)
            answer = self.context.parallelize([call], 1).map(_call).collect()[0]
        except Exception as error:
            raise (BrokenExecutor if self._is_gone() else WorkerLostError)(str(error).partition("\n")[0]) from None
        failure, result = cloudpickle.loads(answer)
        if failure is not None:
            raise failure
        return result

    def _is_gone(self) -> bool:
        try:
            return bool(self.context._jsc.sc().isStopped())
        except Exception:
            return True


def _call(call: bytes) -> bytes:
    """Makes a call in a process of Spark's, and returns its error and its result, pickled."""
    from pyspark import TaskContext, cloudpickle

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # left to the caller
    try:
        task = TaskContext.get()
        if task is not None and task.attemptNumber():  # the lost worker may still write
            raise WorkerLostError("Spark has lost the worker")
        fn, args, kwargs = cloudpickle.loads(call)
        return bytes(cloudpickle.dumps((None, fn(*args, **kwargs))))
    except Exception as error:
        return bytes(cloudpickle.dumps((error, None)))
