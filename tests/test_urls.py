"""How URLs are shown: never with a user, a password, or a query."""

from __future__ import annotations

import errno
import pickle
import traceback
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dlio.dataset.location import names_url
from dlio.errors import DlioError, StorageError, TimedOutError, UsageError
from dlio.urls import is_unclear, is_url, parted, shown, without_credentials

SECRET = "Hush"
SCHEMES = st.sampled_from(["http", "https", "s3", "gs", "ftp", "webdav+https"])
PLACES = st.sampled_from(["host", "host:8080", "[::1]:9000", "bucket"])
PATHS = st.sampled_from(["", "/packed", "/a/b.c", "/50% of it", "/données"])


def secrets(odd: str) -> st.SearchStrategy[str]:
    """Returns strategies of passwords whose every part holds SECRET, with odd characters between the parts."""
    parts = st.lists(st.text(odd, min_size=1, max_size=3), max_size=4)
    return parts.map(lambda between: SECRET + "".join(f"{odd}{SECRET}" for odd in between))


ANYTHING = st.one_of(secrets("@:/?#%"), secrets("@:/?#%+= \t'\"<>é中\N{PILE OF POO}\udc80"))
WITHOUT_SPACES = secrets("@:/?#%+=&é中\N{PILE OF POO}")


@example("https", "user", f"{SECRET}/{SECRET}", "host", "/packed")
@given(SCHEMES, st.sampled_from(["", SECRET, "AKIA" + SECRET]), ANYTHING, PLACES, PATHS)
def test_no_part_of_a_password_is_shown(scheme: str, user: str, password: str, place: str, path: str) -> None:
    found = shown(f"{scheme}://{user}:{password}@{place}{path}")
    assert SECRET not in found
    assert found.startswith(f"{scheme}://")
    assert shown(found) == found


@example("https", "host", "/packed", "?", f"{SECRET}@{SECRET}")
@given(SCHEMES, PLACES, PATHS, st.sampled_from("?#"), ANYTHING)
def test_no_query_is_shown(scheme: str, place: str, path: str, mark: str, token: str) -> None:
    assert SECRET not in shown(f"{scheme}://{place}{path}{mark}X-Amz-Signature={token}")


@given(SCHEMES, PLACES, PATHS)
def test_what_holds_no_secret_is_shown_as_it_is(scheme: str, place: str, path: str) -> None:
    assert shown(f"{scheme}://{place}{path}") == f"{scheme}://{place}{path}"
    assert shown(f"{scheme}://user:{SECRET}@{place}{path}") == f"{scheme}://{place}{path}"


@given(SCHEMES, WITHOUT_SPACES, PLACES, PATHS.filter(lambda path: " " not in path))
def test_a_text_tells_no_password_of_the_urls_in_it(scheme: str, password: str, place: str, path: str) -> None:
    url = f"{scheme}://user:{password}@{place}{path}"
    as_path = url.replace("://", ":/", 1)  # what pathlib makes of it
    for text in (
        f"cannot read {url}: 503",
        f"503, url='{url}'",
        f'["{url}", "{url}?x={SECRET}"]',
        f"{as_path} was removed",
    ):
        assert SECRET not in without_credentials(text)


@given(WITHOUT_SPACES)
def test_a_lone_password_of_a_known_url_is_left_out(password: str) -> None:
    quoted = password.translate({ord(mark): f"%{ord(mark):02X}" for mark in "@:/?#%"})
    url = f"ftp://user:{quoted}@host/packed"
    text = f"login of user:{quoted} refused, tried {quoted} and {password}"
    assert SECRET not in without_credentials(text, url)


def test_a_text_about_a_url_without_a_password_keeps_its_colons() -> None:
    text = "Cannot connect to host 127.0.0.1:1 ssl:default"
    for url in ("http://127.0.0.1:1/x", "s3://bucket/x", "https://alice@host/x"):
        assert without_credentials(text, url) == text


@given(WITHOUT_SPACES)
def test_no_error_of_dlio_tells_a_password(password: str) -> None:
    url = f"http://user:{password}@host/packed"
    for error in (UsageError(f"{url} is bad"), StorageError(errno.EIO, f"cannot read {url}"), TimedOutError(url)):
        again = pickle.loads(pickle.dumps(error))
        for text in (str(error), repr(error), error.text, repr(again), *traceback.format_exception(error)):
            assert SECRET not in text
        assert (type(again), again.text, getattr(again, "errno", None)) == (
            type(error),
            error.text,
            getattr(error, "errno", None),
        )


def test_errors_keep_what_they_are_made_of() -> None:
    error = StorageError(errno.ENOSPC, "no room in /a:/b@c")
    assert (error.errno, error.strerror, error.text) == (errno.ENOSPC, "no room in /a:/b@c", "no room in /a:/b@c")
    assert DlioError("one", 2).args == ("one", 2)


@pytest.mark.parametrize(
    ("url", "bare", "user", "password"),
    [
        ("https://host/packed", "https://host/packed", "", ""),
        ("https://user:pass@host:1/packed", "https://host:1/packed", "user", "pass"),
        ("https://user:p@ss:word@host/packed", "https://host/packed", "user", "p@ss:word"),
        ("https://:pass@host", "https://host", "", "pass"),
        ("https://token@host/a@b", "https://host/a@b", "token", ""),
        ("https://@host/packed", "https://host/packed", "", ""),
    ],
)
def test_user_and_password_are_taken_out(url: str, bare: str, user: str, password: str) -> None:
    assert parted(url) == (bare, user, password)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("http://user:pa/ss@host/packed", True),
        ("http://user:pa@ss/word@host/packed", True),
        ("http://user:pass@host/data@v2", True),
        ("http://user:pass@host/packed", False),
        ("http://user:p@ss@host/packed", False),
        ("http://node:8080/data@v2", False),
        ("http://[::1]:8080/data@v2", False),
        ("s3://bucket/data@v2", False),
    ],
)
def test_which_part_is_the_password_may_be_unclear(url: str, expected: bool) -> None:
    assert is_unclear(url) == expected


@pytest.mark.parametrize("no_path", [None, 5, b"photos", ["photos"], Path("s3://bucket/x"), "https:/host/x"])
def test_what_is_neither_a_path_nor_a_url_is_refused(no_path: Any) -> None:
    with pytest.raises(UsageError, match="a URL"):
        names_url(no_path)


def test_what_is_a_url() -> None:
    assert is_url("s3://bucket/x")
    assert not is_url("/lustre/photos")
    assert not is_url("photos")
    assert shown("/lustre/photos@2?#") == "/lustre/photos@2?#"
