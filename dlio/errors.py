"""What can go wrong, and the exit code of the `dlio` command for each.

    DlioError
    ├── UsageError             ValueError      2   arguments that cannot be carried out
    ├── DataError              ValueError      3   the data given cannot be used
    │   ├── SourceError                            a file, list or label given to `pack`
    │   ├── SchemaError                            a field that a format or a sample does not have
    │   ├── ManifestError                          manifest.jsonl is missing, damaged or of another version
    │   ├── CorruptRecordError                     a record that differs from what was packed
    │   └── UnsupportedJpegError                   a JPEG of a kind that the compiled core leaves to Pillow
    ├── StorageError           OSError         4   space, permission, input/output
    │   ├── DigestError                            a file that differs from its digest
    │   └── TimedOutError    TimeoutError          a batch that did not come in time
    └── MissingError                           5   what the machine lacks
        ├── MissingPackageError  ImportError       a Python package
        └── LauncherError                          rank variables that contradict each other, no cluster

A run that did its work but skipped samples, or found damaged ones, raises nothing: it lists them and exits 1.
Every error survives pickling, so it crosses from a worker to the caller whole. None holds a URL's password: the URLs in
its text are as `dlio.urls.shown` makes them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dlio.urls import without_credentials

DISTRIBUTION = "dlio-toolkit"  # what pip calls dlio

EXIT_DONE = 0
EXIT_SKIPPED = 1
EXIT_INTERRUPTED = 130  # as shells count an end by SIGINT


class DlioError(Exception):
    """Base of all errors that dlio raises on purpose; `exit_code` is what the command line returns."""

    exit_code = 3

    def __init__(self, *args: object) -> None:
        super().__init__(*(without_credentials(arg) if isinstance(arg, str) else arg for arg in args))

    @property
    def text(self) -> str:  # called `message`, torch would take it for an argument of the constructor
        """What the error says, without the number that the system's errors carry."""
        return str(getattr(self, "strerror", None) or self)


class UsageError(DlioError, ValueError):
    """Arguments that contradict each other or cannot be carried out."""

    exit_code = 2


class DataError(DlioError, ValueError):
    """The data given cannot be used."""


class SourceError(DataError):
    """An input of `pack` is unreadable, empty, no image, or has a bad label."""


class SchemaError(DataError):
    """A field that a format cannot hold, or a sample that does not follow its schema."""


class ManifestError(DataError):
    """`manifest.jsonl` is missing, damaged, or written by another version."""


class CorruptRecordError(DataError):
    """A record with other bytes than were packed.

    Attributes:
        path: the file that holds the record.
        record: the record's number within its shard, from 0; None where the file itself is damaged.
        offset: the record's position in `path`, in bytes; None where the format has no offsets.
        problem: what was expected and what was found.

    torch rebuilds what a worker process raised from its printed traceback alone (`torch._utils.ExceptionWrapper`):
    given nothing but that, the attributes are those of the error printed last, and the traceback becomes a note.
    """

    def __init__(
        self, path: str | Path, problem: str | None = None, *, record: int | None = None, offset: int | None = None
    ) -> None:
        if problem is None:
            self.add_note(str(path))
            path, record, offset, problem = _read_printed(str(path))
        super().__init__(path, problem, record, offset)
        self.path = without_credentials(str(path))
        self.problem = problem
        self.record = record
        self.offset = offset

    def __str__(self) -> str:
        where = [self.path]
        if self.record is not None:
            where.append(f"record {self.record}")
        if self.offset is not None:
            where.append(f"offset {self.offset}")
        return f"{', '.join(where)}: {self.problem}"

    def __reduce__(self) -> tuple[object, ...]:
        return _rebuild_corrupt_record, (self.path, self.problem, self.record, self.offset)


_PRINTED = [  # a path may hold a colon, so the longer form goes first
    re.compile(r"(?P<path>.+?), record (?P<record>\d+)(?:, offset (?P<offset>\d+))?: (?P<problem>.*)", re.DOTALL),
    re.compile(r"(?P<path>.+?)(?P<record>)(?:, offset (?P<offset>\d+))?: (?P<problem>.*)", re.DOTALL),
]


def _read_printed(text: str) -> tuple[str, int | None, int | None, str]:
    """Returns path, record, offset and problem of the CorruptRecordError that a traceback ends with."""
    printed = text.rpartition("CorruptRecordError: ")[2].rstrip("\n")
    match = next(filter(None, (form.fullmatch(printed) for form in _PRINTED)), None)
    if match is None:
        return "", None, None, text
    record, offset = (int(match[name]) if match[name] else None for name in ("record", "offset"))
    return match["path"], record, offset, match["problem"]


def _rebuild_corrupt_record(path: str, problem: str, record: int | None, offset: int | None) -> CorruptRecordError:
    return CorruptRecordError(path, problem, record=record, offset=offset)


#: What parsing bytes that are not what they should be may raise.
MALFORMED = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError, StopIteration)


class corrupt_errors:  # noqa: N801  used as `contextlib.suppress`; for each record, so not a generator
    """Turns ValueErrors, or other kinds, into CorruptRecordErrors that name the file, the record, and where it is."""

    __slots__ = ("_kinds", "_offset", "_path", "_problem", "_record")

    def __init__(
        self,
        path: str | Path,
        problem: str = "{}",
        *,
        record: int | None = None,
        offset: int | None = None,
        kinds: tuple[type[Exception], ...] = (ValueError, OverflowError),
    ) -> None:
        """Takes what a CorruptRecordError takes; `{}` in the problem is what the other error says."""
        self._path, self._problem, self._record, self._offset = path, problem, record, offset
        self._kinds = kinds

    def __enter__(self) -> None:
        """Begins to read."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """Raises CorruptRecordError for an error of these kinds, unless it is one."""
        if isinstance(error, self._kinds) and not isinstance(error, CorruptRecordError):
            problem = self._problem.format(error)
            raise CorruptRecordError(self._path, problem, record=self._record, offset=self._offset) from error


@contextmanager
def library_errors(library: str, path: Path, record: int | None = None) -> Iterator[None]:
    """Turns what a library raises for a damaged file into CorruptRecordError, the system's errors into StorageError."""
    try:
        yield
    except DlioError:
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise StorageError(error.errno, f"cannot read {path}: {error.strerror}") from error
        said = str(error).partition("\n")[0]
        problem = f"{library} cannot read it ({said}): restore the file"
        raise CorruptRecordError(path, problem, record=record) from error


class UnsupportedJpegError(DataError):
    """A JPEG that may be whole, of a kind that the compiled core does not decode: CMYK, 12 bit, lossless."""


class StorageError(DlioError, OSError):
    """A file system refused: no space, no permission, an input/output error."""

    exit_code = 4


class DigestError(StorageError):
    """A file that does not match its digest."""


class TimedOutError(StorageError, TimeoutError):
    """Samples that could not be read and decoded in the time given for them."""


class MissingError(DlioError):
    """The machine lacks something that the call needs."""

    exit_code = 5


class MissingPackageError(MissingError, ImportError):
    """A Python package is not installed; the message gives the pip line."""


class LauncherError(MissingError):
    """The launcher's rank variables are incomplete or contradictory, or a launcher or cluster is missing."""


def missing_package(package: str, extra: str, purpose: str) -> MissingPackageError:
    """Returns the error to raise where `package`, part of the extra `extra`, cannot be imported."""
    return MissingPackageError(f"{purpose} needs the package {package!r}: pip install {requirements(extra) or package}")


@contextmanager
def needs_package(name: str, extra: str, purpose: str) -> Iterator[None]:
    """Raises MissingPackageError, as `missing_package`, if what the body imports is not installed."""
    try:
        yield
    except ImportError as error:
        raise missing_package(name, extra, purpose) from error


def requirements(extra: str) -> str:
    """Returns what the extra asks for, as words for pip: these can be installed whether or not an index has dlio."""
    own = [line.partition(";") for line in all_requirements()]
    return " ".join(f"'{name.strip()}'" for name, _, marker in own if re.fullmatch(f" extra == .{extra}.", marker))


def all_requirements() -> list[str]:
    """Returns the requirements of this installation, with the extras, such as `h5py>=3.10; extra == 'hdf5'`."""
    from importlib import metadata

    try:
        return metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:  # run from its source
        return []
