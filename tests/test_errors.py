"""The exception tree: exit codes, builtin bases, and the way from a worker to its caller."""

from __future__ import annotations

import multiprocessing
import pickle
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from dlio import errors


def _tree(base=errors.DlioError):
    return [base, *(below for kind in base.__subclasses__() for below in _tree(kind))]


EXIT_CODES = {
    errors.DlioError: 3,
    errors.UsageError: 2,
    errors.DataError: 3,
    errors.SourceError: 3,
    errors.SchemaError: 3,
    errors.ManifestError: 3,
    errors.CorruptRecordError: 3,
    errors.UnsupportedJpegError: 3,
    errors.StorageError: 4,
    errors.DigestError: 4,
    errors.TimedOutError: 4,
    errors.MissingError: 5,
    errors.MissingPackageError: 5,
    errors.LauncherError: 5,
}


def _make(kind):
    if kind is errors.CorruptRecordError:
        return kind(Path("/a b/shard-0.rec"), "expected 5, found 6", record=3, offset=4096)
    if issubclass(kind, OSError):
        return kind(28, "cannot write /a b: no space")
    return kind("what happened, to which path, what to do")


def test_every_class_has_an_exit_code_and_is_drawn():
    tree = _tree()
    assert {kind: kind.exit_code for kind in tree if kind.__module__ == errors.__name__} == EXIT_CODES
    assert all(kind.__name__ in errors.__doc__ for kind in EXIT_CODES)
    assert (errors.EXIT_DONE, errors.EXIT_SKIPPED) == (0, 1)


@pytest.mark.parametrize(
    ("kind", "builtin"),
    [
        (errors.UsageError, ValueError),
        (errors.DataError, ValueError),
        (errors.StorageError, OSError),
        (errors.MissingPackageError, ImportError),
    ],
)
def test_each_is_the_builtin_that_a_user_would_catch(kind, builtin):
    assert issubclass(kind, builtin)
    assert all(issubclass(below, builtin) for below in _tree(kind))


@pytest.mark.parametrize("kind", EXIT_CODES, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_errors_survive_pickling(kind, protocol):
    error = _make(kind)
    again = pickle.loads(pickle.dumps(error, protocol))
    assert type(again) is kind
    assert str(again) == str(error)
    assert vars(again) == vars(error)
    assert getattr(again, "errno", None) == getattr(error, "errno", None)


@pytest.mark.parametrize("kind", EXIT_CODES, ids=lambda kind: kind.__name__)
def test_errors_survive_copying_of_a_copy(kind):
    error = _make(kind)
    for _ in range(3):
        error = pickle.loads(pickle.dumps(error))
    assert str(error) == str(_make(kind))


def test_a_corrupt_record_crosses_from_a_worker():
    error = _make(errors.CorruptRecordError)
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        (found,) = pool.map(errors._rebuild_corrupt_record, ["/a"], ["p"], [0], [None])
        again = pool.submit(type(error).__reduce__, error).result()
    assert (found.path, found.record, found.offset) == ("/a", 0, None)
    assert again[1] == (error.path, error.problem, error.record, error.offset)


@pytest.mark.parametrize(
    ("places", "text"),
    [
        ({}, "/p: broken"),
        ({"record": 0}, "/p, record 0: broken"),
        ({"offset": 0}, "/p, offset 0: broken"),
        ({"record": 2, "offset": 9}, "/p, record 2, offset 9: broken"),
    ],
)
def test_a_corrupt_record_says_where(places, text):
    error = errors.CorruptRecordError("/p", "broken", **places)
    assert str(error) == text
    printed = f"Caught it.\n  File x, line 1\nValueError: 1\n\ndlio.errors.CorruptRecordError: {text}\n"
    again = errors.CorruptRecordError(printed)  # as torch rebuilds it
    assert str(again) == text and again.args == error.args and again.__notes__ == [printed]


def test_a_corrupt_record_of_any_other_text_keeps_it():
    error = errors.CorruptRecordError("what")
    assert (error.path, error.problem, error.record) == ("", "what", None)


def test_a_missing_package_gives_the_line_to_type():
    error = errors.missing_package("lmdb", "lmdb", "reading LMDB shards")
    assert isinstance(error, errors.MissingPackageError)
    assert "pip install 'protobuf>=" in str(error)
    assert "reading LMDB shards" in str(error)
