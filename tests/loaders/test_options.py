"""The words of the loaders: the same names, defaults and meanings everywhere, and the words of frameworks as well."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

import numpy as np
import pytest

from dlio.dataset.manifest import Manifest
from dlio.errors import UsageError
from dlio.images import Resize
from dlio.loaders.dataset import PackedSamples
from dlio.loaders.loader import Loader
from dlio.loaders.options import Keywords, MostKeywords, Options, options_of
from tests.helpers.lazy import Lazy
from tests.loaders.photos import dlio_threads

torch_loaders = Lazy("dlio.loaders.torch")
LOADERS = {
    "loader": Lazy("dlio.loaders.loader", "Loader"),
    "torch": Lazy("dlio.loaders.torch", "DataLoader"),
    "tensorflow": Lazy("dlio.loaders.tensorflow", "dataset"),
    "keras": Lazy("dlio.loaders.keras", "PackedPyDataset"),
    "jax": Lazy("dlio.loaders.jax", "DataLoader"),
}
ROOT = Path(__file__).parents[2]
DEFAULTS = {field.name: field.default for field in fields(Options)}
BY_SHARDING = {"rank", "world_size"}  # JAX' sharding says which rows a process holds


@pytest.fixture(autouse=True)
def leaves_nothing_behind() -> Any:
    """TensorFlow and JAX keep their own threads, so only those of dlio are looked for."""
    yield
    assert not dlio_threads()


@pytest.mark.parametrize("name", list(LOADERS))
def test_every_loader_has_the_words_of_the_table(name: str) -> None:
    loader = LOADERS[name].found()
    parameters = inspect.signature(loader).parameters
    wanted = DEFAULTS.keys() - (BY_SHARDING if name == "jax" else set())
    assert {word: parameters[word].default for word in wanted} == {word: DEFAULTS[word] for word in wanted}
    assert name != "jax" or not BY_SHARDING & parameters.keys()
    assert not [each for each in parameters.values() if each.kind is each.VAR_KEYWORD]
    documented = (loader.__init__ if inspect.isclass(loader) else loader).__doc__ or ""
    assert not [word for word in wanted if not re.search(rf"^ +(\w+, )*{word}(, \w+)*: ", documented, re.MULTILINE)]
    assert "**keywords" not in documented


def test_the_documents_have_the_table() -> None:
    _, _, section = (ROOT / "docs" / "loaders.md").read_text().partition("\n## The keywords of all loaders\n")
    rows = re.findall(r"^\| (`.*?`) \| (\S+) \|", section.partition("\n## ")[0], re.MULTILINE)
    found = {word.strip("`"): default for words, default in rows for word in words.split(", ")}
    assert {word: found[word] for word in DEFAULTS} == {word: str(value) for word, value in DEFAULTS.items()}


def test_what_opens_samples_has_the_same_words() -> None:
    for opens in (torch_loaders.PackedDataset, PackedSamples):
        parameters = inspect.signature(opens).parameters
        for word in ("transform", "fields", "upright", "max_skipped", "cache"):
            assert parameters[word].default == DEFAULTS[word]


def test_the_types_for_checkers_are_those_of_the_table() -> None:
    other = {"workers", "num_threads", "prefetch_factor", "max_queue_size", "drop_last", "drop_remainder"}
    types = get_type_hints(Options)
    assert get_type_hints(Keywords) == types | {word: bool if "drop" in word else int for word in other}
    torchs = {"transform", "shuffle", "num_workers", "timeout"}
    assert get_type_hints(MostKeywords) == {word: kind for word, kind in types.items() if word not in torchs}


@pytest.mark.parametrize("name", list(LOADERS))
def test_words_of_frameworks_mean_the_same(packed: Manifest, name: str) -> None:
    words: dict[str, Any] = {"transform": Resize(8), "num_threads": 1, "max_queue_size": 3, "drop_remainder": True}
    if name == "torch":  # it has these three by its own names
        words = {"transform": Resize(8), "num_workers": 1, "prefetch_factor": 3, "drop_last": True}
    with_words = LOADERS[name](packed, 4, **words)
    inner: Any = getattr(with_words, "_loader", with_words)
    assert (inner.num_workers, inner.prefetch, inner.end) == (1, 3, "drop")
    with_words.close()


def test_a_word_that_is_none_names_the_one_that_is_meant() -> None:
    for given, said in {
        "num_worker": "no keyword 'num_worker': did you mean num_workers",
        "prefech": "did you mean prefetch",
        "xyz": "no keyword 'xyz'$",
    }.items():
        with pytest.raises(TypeError, match=said):
            options_of({given: 1})


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"workers": 2, "num_workers": 3}, "workers=2 and num_workers=3 contradict each other: give one"),
        ({"end": "mask", "drop_last": True}, "end='mask' and drop_last=True contradict"),
        ({"end": "all"}, "end='all': expected drop, mask, pad"),
        ({"prefetch": 0}, "prefetch=0: expected at least 1"),
        ({"num_workers": -1}, "num_workers=-1: expected at least 0"),
        ({"max_skipped": -1}, "max_skipped=-1: expected at least 0"),
        ({"lanes": 0}, "lanes=0: expected at least 1"),
        ({"timeout": 3, "num_workers": 0}, "timeout=3, num_workers=0: expected both above 0"),
        ({"rank": 1}, "rank=1, world_size=None: give both or neither"),
        ({"shuffle": "no"}, "shuffle='no': expected True, False or Window"),
        ({"upright": "no"}, "upright='no': expected True or False"),
        ({"num_workers": "2"}, "num_workers='2': expected a whole number"),
        ({"num_workers": 1.5}, "num_workers=1.5: expected a whole number"),
        ({"prefetch": None}, "prefetch=None: expected a whole number"),
        ({"max_skipped": None}, "max_skipped=None: expected a whole number"),
        ({"seed": 1.5}, "seed=1.5: expected a whole number"),
        ({"rank": "0", "world_size": 2}, "rank='0': expected a whole number"),
        ({"timeout": float("nan")}, "timeout=nan: expected at least 0"),
        ({"timeout": "9"}, "timeout='9': expected a number"),
    ],
    ids=str,
)
def test_values_that_do_not_fit_are_named(words: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        options_of(words)


def test_equal_words_do_not_contradict_each_other() -> None:
    assert options_of({"drop_last": True, "end": "drop", "drop_remainder": False}).end == "drop"
    assert options_of({"drop_last": False, "workers": 2, "num_workers": 2}) == Options(num_workers=2)
    assert options_of({"workers": None, "num_workers": 2, "prefetch_factor": None}) == Options(num_workers=2)
    assert options_of({"seed": np.uint64(3), "timeout": np.float32(1)}) == Options(seed=3, timeout=1)


@pytest.mark.parametrize("size", [None, "8", 2.5])
def test_a_batch_size_that_is_no_number_is_named(packed: Manifest, size: Any) -> None:
    for name in LOADERS.keys() - {"torch"}:  # which takes None for single samples, and says what is wrong
        with pytest.raises(UsageError, match=f"batch_size={size!r}: expected a whole number"):
            LOADERS[name](packed, size, transform=Resize(8))


def test_what_is_said_about_samples_that_are_open_is_an_error(packed: Manifest) -> None:
    samples = torch_loaders.PackedDataset(packed, Resize(8))
    with pytest.raises(UsageError, match="upright=True with a dataset: give it to PackedDataset"):
        torch_loaders.DataLoader(samples, 4, upright=True)
    with pytest.raises(UsageError, match="with a dataset: give it to PackedDataset"):
        torch_loaders.DataLoader(samples, 4, transform=Resize(9))
    source = Loader(packed, 4, transform=Resize(8)).source
    with pytest.raises(UsageError, match="max_skipped=1 with ArrayBatches: give it to PackedSamples"):
        Loader(source, 4, max_skipped=1)


@pytest.mark.parametrize("name", list(LOADERS))
def test_every_loader_yields_every_sample_and_tells_its_verdict(packed: Manifest, name: str) -> None:
    loader = LOADERS[name](packed, 4, transform=Resize(8))
    batches = [loader[i] for i in range(len(loader))] if name == "keras" else list(loader)
    sizes = [len(batch["label"] if isinstance(batch, dict) else batch[1]) for batch in batches]
    assert sizes == [4] * 10 + [4 if name == "jax" else 1]  # JAX wants one shape
    assert loader.stats()["batches"] == 11 and "the trainer waited" in loader.verdict()
    loader.close()
