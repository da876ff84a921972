"""How MPI jobs are started here."""

from __future__ import annotations

import os
import shutil
import sysconfig

from dlio.testing.engine_runner import EngineRunner

MPIEXEC = shutil.which("mpiexec", path=f"{sysconfig.get_path('scripts')}:{os.environ['PATH']}")
MPI = EngineRunner("mpi", launcher=(str(MPIEXEC), "-n"))
