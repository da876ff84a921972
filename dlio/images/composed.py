"""Several transforms as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from dlio.errors import UsageError
from dlio.images.effects import Effect
from dlio.images.mixing import Mix, mix_batch
from dlio.images.operations import Images, MovingEffect
from dlio.images.windows import Affine, Around, Transform
from dlio.random_keys import Keys, derive_each

#: What loaders accept: a transform, or a list of one, of effects, and of one way to mix batches at the end.
Transforms = Transform | Sequence[Transform | Effect | Mix]

_EXPECTED = "one that chooses the window, such as RandomCrop(32), then effects, and at the end Mixup or CutMix"


@dataclass(frozen=True, slots=True)
class Composed(Around):
    """A transform, and the effects after it.

    Attributes:
        transform: plans the windows.
        effects: change the results, one after the other.
        mix: then mixes the samples of a batch; None for none.

    Raises:
        UsageError: an effect cannot change results of this size.
    """

    transform: Transform
    effects: tuple[Effect, ...]
    mix: Mix | None = None

    def __post_init__(self) -> None:
        for effect in self.effects:
            if isinstance(effect, MovingEffect):  # may refuse the size
                effect.steps(self.output_size, np.empty(0, np.uint64))

    def followed_by(self, more: Sequence[Effect | Mix]) -> Composed:
        """Returns the same with more effects after it; raises UsageError if it mixes batches before them."""
        if more and self.mix is not None:
            raise UsageError(f"{self.mix!r} mixes whole batches: expected it at the end of the transforms")
        mix = more[-1] if more and isinstance(more[-1], Mix) else self.mix
        effects = more[:-1] if more and mix is more[-1] else more
        return Composed(self.transform, (*self.effects, *effects), mix)  # type: ignore[arg-type]  # `composed` checks


def composed(transform: Any) -> Any:
    """Returns a list of a transform and effects as one transform, anything else unchanged.

    Raises:
        UsageError: the list is empty, does not begin with a transform, continues with what is neither an effect nor, at
            the end, a way to mix, or with an effect that cannot change results of this size.
    """
    if not isinstance(transform, (list, tuple)):
        return transform
    if not transform:
        raise UsageError(f"transform=[]: expected {_EXPECTED}")
    for number, one in enumerate(transform):
        kinds = (Transform,) if number == 0 else (Effect, Mix) if number == len(transform) - 1 else (Effect,)
        if isinstance(one, type) or not isinstance(one, kinds):
            names = " or ".join(kind.__name__ for kind in kinds)
            raise UsageError(f"transform[{number}]={one!r} is no {names} of dlio.images: expected {_EXPECTED}")
    first, *more = transform
    if hasattr(first, "followed_by"):  # boxes and masks move with the window
        return first.followed_by(more)
    return Composed(first, ()).followed_by(more)


def mix_of(transform: object) -> Mix | None:
    """Returns how a transform mixes batches; None if it does not."""
    return getattr(transform, "mix", None)


def mix_batches(transform: Transform, images: Images, labels: npt.NDArray[np.float32], keys: Keys) -> None:
    """Mixes the samples of a batch in place, if the transform does so; arguments as for `mix_batch` and an `Effect`."""
    if (mix := mix_of(transform)) is not None:
        place = len(getattr(transform, "effects", ())) + 1
        mix_batch(images, labels, mix.draw(transform.output_size, derive_each(place, keys)))


def apply_effects(transform: Transform, images: Images, keys: Keys) -> None:
    """Changes images in place by the transform's effects, if it has any; each draws by its own keys, made of `keys`."""
    for number, effect in enumerate(getattr(transform, "effects", ())):
        effect.change(images, derive_each(number + 1, keys))


def moves_of(transform: Transform, keys: Keys) -> list[list[Affine]]:
    """Returns, for each image, the maps by which the transform's effects move its pixels, in their order."""
    found: list[list[Affine]] = [[] for _ in keys]
    for number, effect in enumerate(getattr(transform, "effects", ())):
        if isinstance(effect, MovingEffect):
            steps = effect.steps(transform.output_size, derive_each(number + 1, keys))
            for row, moves in enumerate(found):
                moves += steps.moves(row)
    return found
