"""Findings: what is not an error of dlio, kept with the input that shows it, once for each place in the code."""

from __future__ import annotations

import tempfile
import traceback
import warnings
from collections import Counter
from pathlib import Path

from dlio.errors import DlioError
from tools.fuzz.inputs import Files, pack, write_folder
from tools.fuzz.limits import limited_time
from tools.fuzz.targets import Broken, Target

_MEMORY_DISK = Path("/dev/shm")


class Findings:
    """Runs inputs of a target, and keeps those that break what it promises.

    Attributes:
        counts: how many inputs broke it, by kind and place.
        texts: a traceback for each.
        accepted: how many inputs were read.
        refused: how many gave an error of dlio.
        last: the last error of either kind.
    """

    def __init__(self, target: Target, folder: Path) -> None:
        """Findings go to `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        self.counts: Counter[str] = Counter()
        self.texts: dict[str, str] = {}
        self.accepted = self.refused = 0
        self.last = ""
        self._target = target
        self._folder = folder

    def run(self, files: Files) -> None:
        """Runs one input."""
        try:
            with tempfile.TemporaryDirectory(dir=_MEMORY_DISK if _MEMORY_DISK.is_dir() else None) as name:
                write_folder(Path(name), files)
                with limited_time(), warnings.catch_warnings():
                    warnings.simplefilter("error")
                    warnings.filterwarnings("ignore", module="PIL")  # Pillow's words on damaged metadata
                    self._target.check(Path(name), files)
            self.accepted += 1
        except (KeyboardInterrupt, SystemExit):
            raise
        except DlioError as error:
            self.refused += 1
            self.last = repr(error)
        except BaseException as error:
            self._keep(error, files)

    def _keep(self, error: BaseException, files: Files) -> None:
        place, self.last = _place(error), repr(error)
        self.counts[place] += 1
        if place in self.texts:
            return
        self.texts[place] = "".join(traceback.format_exception(error))
        stem = self._folder / f"{len(self.texts):02d}"
        stem.write_bytes(pack(files))
        stem.with_suffix(".txt").write_text(f"{place}\n\n{self.texts[place]}")


def _place(error: BaseException) -> str:
    """Returns the kind of an error, with the last line of dlio's that it passed, or what is broken."""
    if isinstance(error, Broken):
        return f"Broken: {error}".partition(" (")[0]
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "/dlio/" in frame.filename]
    where = f"dlio/{frames[-1].filename.rpartition('/dlio/')[2]}:{frames[-1].lineno}" if frames else "outside dlio"
    return f"{type(error).__name__} in {where}"
