"""Several transforms as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from dlio.errors import UsageError
from dlio.images.effects import Effect, Images
from dlio.images.operations import MovingEffect
from dlio.images.windows import Affine, Around, Transform
from dlio.random_keys import Keys, derive_each

#: What loaders take: a transform, or a list of one and of effects.
Transforms = Transform | Sequence[Transform | Effect]


@dataclass(frozen=True, slots=True)
class Composed(Around):
    """A transform, and the effects behind it.

    Attributes:
        transform: plans the windows.
        effects: change the results, one after the other.

    Raises:
        UsageError: an effect cannot change results of this size.
    """

    transform: Transform
    effects: tuple[Effect, ...]

    def __post_init__(self) -> None:
        for effect in self.effects:
            if isinstance(effect, MovingEffect):  # may refuse the size
                effect.steps(self.output_size, np.empty(0, np.uint64))

    def with_effects(self, effects: tuple[Effect, ...]) -> Composed:
        """Returns the same with more effects behind."""
        return Composed(self.transform, self.effects + effects)


def composed(transform: Any) -> Any:
    """Returns a list of a transform and effects as one transform, anything else as it is.

    Raises:
        UsageError: the list is empty, does not begin with a transform, or goes on with what is not an effect, or with
            one that cannot change results of this size.
    """
    if not isinstance(transform, (list, tuple)):
        return transform
    kinds = [Transform, *[Effect] * (len(transform) - 1)]
    for number, (one, kind) in enumerate(zip(transform, kinds, strict=False)):
        if isinstance(one, type) or not isinstance(one, kind):
            found = f"transform[{number}]={one!r} is no {kind.__name__} of dlio.images"
            raise UsageError(f"{found}: expected one that chooses the window, such as RandomCrop(32), then effects")
    if not transform:
        raise UsageError("transform=[]: expected one that chooses the window, such as RandomCrop(32), then effects")
    first, *effects = transform
    if hasattr(first, "with_effects"):  # boxes and masks move with the window
        return first.with_effects(tuple(effects))
    return Composed(first, tuple(effects))


def apply_effects(transform: Transform, images: Images, keys: Keys) -> None:
    """Changes images in place by the transform's effects, if it has any; each draws by keys of its own.

    Args:
        transform: any.
        images: uint8 of shape (n, height, width, 3).
        keys: the images', uint64 of shape (n,).
    """
    for number, effect in enumerate(getattr(transform, "effects", ())):
        effect.change(images, derive_each(number + 1, keys))


def moves_of(transform: Transform, keys: Keys) -> list[list[Affine]]:
    """Returns, for each image, the maps by which the transform's effects move its pixels, in their order.

    Args:
        transform: any.
        keys: the images', as for `apply_effects`.
    """
    found: list[list[Affine]] = [[] for _ in keys]
    for number, effect in enumerate(getattr(transform, "effects", ())):
        if isinstance(effect, MovingEffect):
            steps = effect.steps(transform.output_size, derive_each(number + 1, keys))
            for row, moves in enumerate(found):
                moves += steps.moves(row)
    return found
