"""The keywords of all loaders: one table, with defaults and meanings; and the methods that all have.

`Options` is the table. The loaders of torch, TensorFlow, Keras and JAX and `Loader` accept them; their
signatures and docstrings are completed from it by `takes_options`. Every loader accepts the keywords of each framework:

    workers, num_threads             num_workers, unless None
    prefetch_factor, max_queue_size  prefetch, unless None
    drop_last, drop_remainder        end="drop", if true
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from functools import wraps
from numbers import Integral, Real
from pathlib import Path
from textwrap import dedent, indent
from typing import Any, Concatenate, ParamSpec, TypedDict, TypeVar

from dlio.errors import UsageError
from dlio.images import Transforms
from dlio.loaders.sampling.order import Shuffle, check_shuffle
from dlio.loaders.sampling.rank import given_rank
from dlio.loaders.sampling.rank_share import End

_ALIASES = {
    "workers": "num_workers",
    "num_threads": "num_workers",
    "prefetch_factor": "prefetch",
    "max_queue_size": "prefetch",
    "drop_last": "end",
    "drop_remainder": "end",
}
#: The least value of each number; None for any.
_LEAST: dict[str, int | None] = {"seed": None, "rank": None, "world_size": None}
_LEAST |= {"prefetch": 1, "num_workers": 0, "timeout": 0, "lanes": 1, "max_skipped": 0}
_OF_SAMPLES = ("transform", "fields", "upright", "max_skipped", "cache")
_PLACEHOLDER = re.compile(r"^( *)\*\*keywords: .*\n", re.MULTILINE)

F = TypeVar("F", bound=Callable[..., Any])
P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What every loader can be told.

    Attributes:
        transform: applied to the field `image`: one of `dlio.images`, or a list of these; without one images stay
            encoded.
        fields: the names of the fields that samples have; by default all.
        upright: rotate images, their boxes and masks by their EXIF orientation, unlike torchvision's ImageFolder.
        max_skipped: how many damaged samples are replaced by others of their batch, with a warning in the log, before
            one is an error.
        cache: the node-local folder to stage to while the data set is read; True chooses one, as `dlio.stage` does.
        shuffle: False, True or `Window(w)`.
        seed: of order and transform, the same on every rank.
        end: how an epoch ends. `pad` yields every sample, and repeats a few where ranks would differ; `mask` also says
            which these are; `drop` yields whole batches only. See `dlio.loaders.sampling.rank_share`.
        lanes: see `dlio.loaders.sampling.order`; by default 1, or one for each part that is staged.
        rank, world_size: this process, and the number of processes; by default from the launcher.
        num_workers: threads that read and decode, or processes where the transform is a function in Python; 0 for none.
            By default one thread for each core of this rank, and no process. If storage is slow, up to 64 more threads
            read ahead.
        prefetch: batches made ahead of the one in use.
        timeout: seconds to wait for a batch; needs workers. None or 0 wait forever.

    Raises:
        UsageError: a value is out of range or of a wrong type.
    """

    transform: Transforms | None = None
    fields: Sequence[str] | None = None
    upright: bool = False
    max_skipped: int = 0
    cache: str | Path | bool | None = None
    shuffle: Shuffle = False
    seed: int = 0
    end: End | str = End.PAD
    lanes: int | None = None
    rank: int | None = None
    world_size: int | None = None
    num_workers: int | None = None
    prefetch: int = 2
    timeout: float | None = None

    def __post_init__(self) -> None:
        check_shuffle(self.shuffle)
        object.__setattr__(self, "end", End(self.end))
        if not isinstance(self.upright, bool):  # a text such as "no" would count as True
            raise UsageError(f"upright={self.upright!r}: expected True or False")
        for field in fields(self):
            value = getattr(self, field.name)
            if field.name in _LEAST and not (value is None and field.default is None):
                check_number(field.name, value, _LEAST[field.name])
        given_rank(self.rank, self.world_size)
        if self.timeout and self.num_workers == 0:
            raise UsageError(f"timeout={self.timeout}, num_workers=0: expected both above 0, or no timeout")

    def of_samples(self) -> dict[str, Any]:
        """Returns what `PackedSamples` is told: the transform, the fields and their like."""
        return {name: getattr(self, name) for name in _OF_SAMPLES}

    def check_no_samples(self, given: str, advice: str) -> None:
        """Checks that nothing is said about samples that are opened already.

        Raises:
            UsageError: it is; the message has `given` and `advice`.
        """
        for field in fields(self):
            if field.name in _OF_SAMPLES and (value := getattr(self, field.name)) != field.default:
                raise UsageError(f"{field.name}={value!r} with {given}: {advice}")


def check_number(name: str, value: Any, least: int | None = None) -> None:
    """Raises UsageError unless a value is a whole number (or any one, of seconds) of at least `least`."""
    if not isinstance(value, Real if name == "timeout" else Integral):
        raise UsageError(f"{name}={value!r}: expected a {'number' if name == 'timeout' else 'whole number'}")
    if least is not None and not float(value) >= least:
        raise UsageError(f"{name}={value}: expected at least {least}")


class MostKeywords(TypedDict, total=False):
    """The keywords of torch's DataLoader, apart from those that torch has, too; see `Options`."""

    fields: Sequence[str] | None
    upright: bool
    max_skipped: int
    cache: str | Path | bool | None
    seed: int
    end: End | str
    lanes: int | None
    rank: int | None
    world_size: int | None
    prefetch: int


class Keywords(MostKeywords, total=False):
    """The keywords of the other loaders; see `Options`. The last six are aliases."""

    transform: Transforms | None
    shuffle: Shuffle
    num_workers: int | None
    timeout: float | None
    workers: int
    num_threads: int
    prefetch_factor: int
    max_queue_size: int
    drop_last: bool
    drop_remainder: bool


def options_of(keywords: Mapping[str, Any]) -> Options:
    """Returns the options that a loader is given by keyword.

    Raises:
        TypeError: a keyword is not one of a loader's.
        UsageError: two keywords contradict each other, or a value is out of range or of a wrong type.
    """
    names = {field.name for field in fields(Options)}
    chosen: dict[str, Any] = {}
    said: dict[str, str] = {}
    for given, value in keywords.items():
        name = _ALIASES.get(given, given)
        if name not in names:
            close = get_close_matches(given, [*names, *_ALIASES], 1)
            raise TypeError(f"a loader has no keyword {given!r}" + (f": did you mean {close[0]}?" if close else ""))
        if given != name:
            if value is None or (name == "end" and not value):
                continue
            value = End.DROP if name == "end" else value
        if name in chosen and chosen[name] != value:
            raise UsageError(f"{said[name]} and {given}={keywords[given]!r} contradict each other: give one")
        chosen[name], said[name] = value, f"{given}={keywords[given]!r}"
    return Options(**chosen)


def takes_options(*, without: Sequence[str] = ()) -> Callable[[F], F]:
    """Completes the signature and the docstring of a function whose `**keywords` are those of `Options`.

    Args:
        without: keywords that it does not accept.
    """

    def completed(function: F) -> F:
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not each.VAR_KEYWORD]
        added = [
            inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=field.type)
            for field in fields(Options)
            if field.name not in {*without, *signature.parameters}
        ]
        function.__signature__ = signature.replace(parameters=[*own, *added])  # type: ignore[attr-defined]
        left_out = {*without, *signature.parameters}
        documented = "\n".join(text for names, text in _meanings() if not left_out.intersection(names))
        function.__doc__ = _PLACEHOLDER.sub(lambda found: indent(documented, found[1]) + "\n", function.__doc__ or "")
        return function

    return completed


def forwarded(method: Callable[Concatenate[Any, P], R]) -> Callable[Concatenate[Any, P], R]:
    """Returns a method of `Loader` as that of a class whose objects have a `_loader`."""

    @wraps(method)
    def called(self: Any, /, *args: P.args, **kwargs: P.kwargs) -> R:
        return method(self._loader, *args, **kwargs)

    return called


def _meanings() -> list[tuple[list[str], str]]:
    """Returns what the docstring of `Options` says: the names of each entry, and its text."""
    _, _, table = inspect.cleandoc(Options.__doc__ or "").partition("Attributes:\n")
    entries = re.findall(r"^    \w.*\n(?:     +.*\n?)*", table.partition("\n\n")[0] + "\n", re.MULTILINE)
    texts = [dedent(entry).rstrip() for entry in entries]
    return [(text.partition(":")[0].split(", "), text) for text in texts]
