"""Finding formats by name: whose modules may be imported, and by whom."""

from __future__ import annotations

import sys

import pytest

from dlio import formats
from dlio.dataset.schema import IMAGE_CLASSIFICATION
from dlio.errors import UsageError

THEIRS = "from dlio.formats.recordio import SUFFIX, Reader, Writer, refuses\n"


@pytest.fixture
def their_package(tmp_path, monkeypatch):
    """A package of somebody else's with a format, and one module that is none."""
    (tmp_path / "theirs_of_a_test").mkdir()
    (tmp_path / "theirs_of_a_test" / "__init__.py").write_text("")
    (tmp_path / "theirs_of_a_test" / "container.py").write_text(THEIRS)
    (tmp_path / "theirs_of_a_test" / "other.py").write_text("")
    monkeypatch.syspath_prepend(tmp_path)
    yield "theirs_of_a_test"
    for name in [name for name in sys.modules if name.startswith("theirs_of_a_test")]:
        del sys.modules[name]


def test_a_name_from_a_file_never_imports_another_package(their_package):
    with pytest.raises(UsageError, match=r"import theirs_of_a_test\.container"):
        formats.load(f"{their_package}.container")
    assert their_package not in sys.modules


def test_a_name_from_the_user_imports_another_package(their_package):
    name = f"{their_package}.container"
    assert formats.require(name, IMAGE_CLASSIFICATION) is sys.modules[name]
    assert formats.load(name) is sys.modules[name]


@pytest.mark.parametrize("name", ["", ".", "..", "os.path", "no.such.module", "gzip", "_index", "payloads", "a b.c"])
def test_what_is_no_format_is_refused(name):
    with pytest.raises(UsageError, match=r"is not a format|cannot be imported"):
        formats.import_format(name)


def test_a_module_that_is_no_format_is_refused(their_package):
    with pytest.raises(UsageError, match=r"other.*no SUFFIX, refuses, Writer, Reader"):
        formats.import_format(f"{their_package}.other")
