"""URLs, and what of them is shown, logged or stored: no user, no password, and no query, which may hold a signature.

    https://user:password@host/packed?token=1    is shown as    https://host/packed

A password may contain characters that end it in a URL: `/`, `?`, `#` or `@`. If it is unclear which part is the
password, all that may belong to it is replaced by `...`.
"""

from __future__ import annotations

import os
import re
from os import PathLike

_SCHEME = r"[a-zA-Z][a-zA-Z0-9+.-]*"
_IN_TEXT = rf"({_SCHEME}:/)(/?)[^\s'\"<>]+"  # compiled where it is needed, since every error imports this module
#: How URLs begin that pathlib has turned into paths.
REMOTE = ("http:/", "https:/", "s3:/", "s3a:/", "gs:/", "gcs:/", "az:/", "abfs:/")  # else it may be a path's name
_HIDDEN = "..."


def is_url(dataset: str | PathLike[str]) -> bool:
    """Returns whether a data set is named by a URL."""
    return bool(re.match(f"{_SCHEME}://", os.fspath(dataset)))


def shown(url: str) -> str:
    """Returns a URL without user, password, query and fragment; other text is not changed."""
    scheme, separator, rest = url.partition("://")
    if not separator:
        return url
    before, _, after = rest.rpartition("@")
    if "?" in before or "#" in before:  # of a password, or of a query that holds an @
        return f"{scheme}://{_HIDDEN}"
    after = re.split("[?#]", after)[0]
    authority, slash, path = before.partition("/")
    if not slash:
        return f"{scheme}://{after}"
    if ":" in before:  # a password with a slash, or an @ in the path
        return f"{scheme}://{_HIDDEN}/{after}"
    return f"{scheme}://{authority.rpartition('@')[2]}/{path}@{after}"


def without_credentials(text: str, url: str = "") -> str:
    """Returns a text in which every URL, and every path made of one, is as `shown`; the secrets of `url` are hidden.

    In a text a URL ends at white space or a quote. A URL with such a password must be `shown` before it becomes
    part of a text.
    """
    if url:
        from urllib.parse import unquote

        _, user, password = parted(url)
        for secret in (f"{user}:{password}", password, unquote(password)) if password else ():
            text = text.replace(secret, _HIDDEN)
    if ":/" not in text:
        return text
    return re.sub(_IN_TEXT, _in_text, text)


def _in_text(found: re.Match[str]) -> str:
    if found[2]:
        return shown(found[0])
    before, _, after = found[0][len(found[1]) :].rpartition("@")  # pathlib has made one slash of two
    text = f"{found[1]}{after}" if ":" in before else found[0]
    return text.replace(":/", "://", 1) if found[1] in REMOTE else text


def parted(url: str) -> tuple[str, str, str]:
    """Returns a URL without user and password, and these two as they are written there, '' if missing."""
    scheme, _, rest = url.partition("://")
    authority = re.split("[/?#]", rest, maxsplit=1)[0]
    userinfo, _, host = authority.rpartition("@")
    user, _, password = userinfo.partition(":")
    return f"{scheme}://{host}{rest[len(authority) :]}", user, password


def is_unclear(url: str) -> bool:
    """Returns whether a part of a password may be taken for the host or the path: a `/` or `@` in it is not quoted."""
    authority, _, path = url.partition("://")[2].partition("/")
    userinfo, _, host = authority.rpartition("@")
    is_host = re.fullmatch(r"(\[[^\]]*\]|[^:]*)(:[0-9]*)?", host)
    return "@" in path and "::" not in url and (bool(userinfo) or not is_host)  # fsspec chains URLs by ::
