"""A session of fuzzing: its seeds, the inputs made of them, and what it found."""

from __future__ import annotations

import os
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tools.fuzz.findings import Findings
from tools.fuzz.inputs import Files, pack, unpack
from tools.fuzz.limits import limit_memory
from tools.fuzz.mutate import mutate
from tools.fuzz.targets import TARGETS

_MAX_INPUT_BYTES = 1 << 19
_HANG_SECONDS = 60  # libFuzzer's own timeout, which ends the process: for code that never returns to Python
_STACKED = 8  # successive changes before a seed is used again


def names() -> list[str]:
    """Returns the names of the targets."""
    return sorted(TARGETS)


class Session:
    """Fuzzes one target; its corpus and findings lie in `out`/TARGET."""

    def __init__(self, name: str, out: Path, seed: int) -> None:
        self._target = TARGETS[name]
        self._folder = out / name
        self._seed = seed
        self._findings = Findings(self._target, self._folder / "findings")
        self._seeds: Sequence[Files] = ()
        self._began = time.monotonic()

    def replay(self, paths: Sequence[Path]) -> int:
        """Runs the inputs in these files, and returns the exit code."""
        for path in paths:
            self._findings.run(unpack(path.read_bytes()))
        return self.report(len(paths))

    def run_seeds(self) -> None:
        """Makes the seeds and runs each, which imports all that dlio needs for them."""
        self._seeds = self._target.seeds()
        for files in self._seeds:
            if len(pack(files)) > _MAX_INPUT_BYTES:
                raise SystemExit(f"a seed of {self._target.name} has more than {_MAX_INPUT_BYTES:,} bytes")
            self._findings.run(files)
            if self._findings.counts or not self._findings.accepted:
                raise SystemExit(f"a seed of {self._target.name} is refused: {self._findings.last}")

    def run_blindly(self, runs: int) -> int:
        """Runs inputs drawn from the seeds, the same ones for equal seeds, and returns the exit code."""
        limit_memory()
        picks = random.Random(self._seed)
        chain: list[Files] = []
        running = self._folder / "running"  # the input that ended, or stopped, the process
        for number in range(runs):
            if number % _STACKED == 0:
                chain = [picks.choice(self._seeds)]
            chain.append(mutate(picks.choice(chain), picks, self._seeds))
            running.write_bytes(pack(chain[-1]))
            self._findings.run(chain[-1])
        running.unlink()
        return self.report(runs)

    def run_guided(self, runs: int) -> int:
        """Lets libFuzzer run inputs, those that reach new code kept and changed further, and returns the exit code."""
        import atheris

        corpus = self._folder / "corpus"
        corpus.mkdir(parents=True, exist_ok=True)
        for number, files in enumerate(self._seeds):
            (corpus / f"seed-{number:03d}").write_bytes(pack(files))
        limit_memory()
        options = [f"-runs={runs}", f"-seed={self._seed}", f"-max_len={_MAX_INPUT_BYTES}", "-len_control=0"]
        options += [f"-timeout={_HANG_SECONDS}", "-rss_limit_mb=0", "-print_final_stats=1"]
        options += [f"-artifact_prefix={self._folder}/", str(corpus)]
        done = 0

        def run_one(data: bytes) -> None:
            nonlocal done
            if files := unpack(data):  # libFuzzer begins with an empty input, and with one of a byte
                self._findings.run(files)
            done += 1
            if done == runs:  # libFuzzer would end the process with 0
                code = self.report(done)
                sys.stdout.flush()
                os._exit(code)

        atheris.Setup([sys.argv[0], *options], run_one, custom_mutator=self._changed)
        atheris.Fuzz()
        return self.report(done)

    def _changed(self, data: bytes, max_bytes: int, number: int) -> bytes:
        picks = random.Random(number)
        changed = pack(mutate(unpack(data) or picks.choice(self._seeds), picks, self._seeds))
        return changed if len(changed) <= max_bytes else data

    def report(self, runs: int) -> int:
        """Prints what was found, and returns the exit code."""
        findings, seconds = self._findings, time.monotonic() - self._began
        for place, count in findings.counts.most_common():
            print(f"{count} x {place}\n{findings.texts[place]}", file=sys.stderr)
        shares = f"{findings.accepted} accepted, {findings.refused} refused"
        print(f"{self._target.name}: {runs} inputs in {seconds:.0f} s, {shares}, {len(findings.counts)} findings")
        return 1 if findings.counts else 0
