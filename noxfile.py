"""The test suite on every Python that the machine has: `nox` (pip install nox).

    nox                     tests that need no framework, on 3.11, 3.12 and 3.13, each in its own environment
    nox -s all-3.12         everything, with torch, TensorFlow and JAX
    nox -s quick-3.13 -- tests/native -x

A Python that the machine lacks is skipped.
"""

from __future__ import annotations

import nox

PYTHONS = ["3.11", "3.12", "3.13"]
LIGHT = ["tfrecord", "lmdb", "hdf5", "parquet", "remote", "completion"]  # extras that every Python has, in seconds
TOOLS = ["pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "lmdb", "scipy", "pyyaml"]

nox.options.sessions = ["quick"]
nox.options.error_on_missing_interpreters = False


@nox.session(python=PYTHONS)
def quick(session: nox.Session) -> None:
    """What needs no framework and no MPI."""
    session.install("--editable", f".[{','.join(LIGHT)}]", *TOOLS)
    tests = [f"QUICK={' '.join(session.posargs)}"] if session.posargs else []
    session.run("make", "--silent", "quick-tests", "PYTHON=python", *tests, external=True)


@nox.session(python=PYTHONS)
def all(session: nox.Session) -> None:  # noqa: A001
    """Everything, with every extra."""
    session.install("--editable", ".[test]")
    session.run("python", "-m", "pytest", "-q", "-n", "2", "--dist", "worksteal", *session.posargs)
