"""Methods that the frameworks' loaders take from the `Loader` that they hold."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, ParamSpec, TypeVar

from dlio.loaders.loader import Loader

P = ParamSpec("P")
R = TypeVar("R")


def forwarded(method: Callable[Concatenate[Loader[Any], P], R]) -> Callable[Concatenate[Any, P], R]:
    """Returns a method of `Loader` as that of a class whose objects have a `_loader`."""

    @wraps(method)
    def called(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(self._loader, *args, **kwargs)

    return called
