"""Python has a function for each verb, with the same name and the same defaults."""

from __future__ import annotations

import argparse
import inspect
import json
from dataclasses import asdict
from pathlib import Path

import pytest

import dlio
from dlio.cli import VERBS, parser
from dlio.errors import UsageError
from dlio.pack.sources import open_source

NAMES = [verb for verbs in VERBS.values() for verb in verbs]
OF_THE_SHELL = {
    "help",
    "json",
    "quiet",
    "verbose",
    "dry_run",
    "src",
    "path",
    "dataset",
    "dest",
    "out",
    "engine_address",
}
#: Options that another keyword, or another function of the library, takes.
ELSEWHERE = {
    "pack": {
        "engine_address",
        "source",
        "root",
        "option",
        "resize",
        "center_crop",
        "color",
        "encoding",
        "quality",
        "crop_ready",
        "decode_ready",
        "upright",
        "check",
    },
    "convert": {
        "engine_address",
        "resize",
        "center_crop",
        "color",
        "encoding",
        "quality",
        "crop_ready",
        "decode_ready",
        "jpeg",
        "upright",
        "check",
    },
    "index": {"source", "root", "option"},
    "info": {"croissant", "card", "name", "description", "license", "url", "published"},
    "mount": {"print"},
    "verify": {"repair", "source", "staged", "max_rate", "deadline", "seal"},
    "stage": {"stripe_count", "stripe_size", "pool", "ost_per_rank", "background", "wait", "status", "cache_size"},
}


def options(verb: str) -> dict[str, argparse.Action]:
    top = parser(verb)
    [verbs] = [action for action in top._actions if isinstance(action, argparse._SubParsersAction)]
    return {action.dest: action for action in verbs.choices[verb]._actions}


@pytest.mark.parametrize("verb", NAMES)
def test_every_verb_is_a_function_with_its_options_and_defaults(verb):
    function = dlio.pack if verb == "convert" else getattr(dlio, verb)
    known = inspect.signature(function).parameters
    assert verb in dir(dlio) and getattr(dlio, verb).__doc__
    for name, option in options(verb).items():
        if name in OF_THE_SHELL | ELSEWHERE.get(verb, set()):
            continue
        default = known[name].default
        same = option.default == default or (default == () and option.default == [])  # which argparse can add to
        assert option.required if default is inspect.Parameter.empty else same, name


def test_a_path_packs_as_the_source_that_it_is_recognised_as(photos, tmp_path):
    by_path = dlio.pack(photos, tmp_path / "one", engine="serial")
    by_text = dlio.pack(str(photos), tmp_path / "two", engine="serial")
    assert by_path == by_text == dlio.pack(open_source(photos), tmp_path / "three", engine="serial")


def test_the_reports_are_those_of_the_command_line(run, packed, tmp_path):
    assert dlio.convert(packed, tmp_path / "tar", format="webdataset", engine="serial").format == "webdataset"
    assert dlio.verify(tmp_path / "tar", decode=True, workers=1) == dlio.verify(dlio.Manifest.load(packed)) == []
    found = dlio.info(packed, shuffle_window=2, batch_size=4)
    words = ("info", packed, "--json", "--shuffle-window", 2, "--batch-size", 4)
    assert json.loads(run(*words)[1]) == json.loads(json.dumps(found))
    plan = asdict(dlio.plan(packed, nodes=3, source_rate=1e9))
    shown = json.loads(run("plan", packed, "--nodes", 3, "--source-rate", "1000000000", "--json")[1])
    assert shown == json.loads(json.dumps(plan))


def test_shards_are_adopted_by_python_too(packed):
    for path in (packed / "manifest.jsonl", *packed.glob("*.npz")):
        path.unlink()
    assert dlio.index(packed, format="tfrecord", workers=1).num_samples == 12


def test_completion_offers_the_public_names_only():
    assert dir(dlio) == sorted([*dlio.__all__, "__version__"])
    assert all(hasattr(dlio, name) for name in dir(dlio))


@pytest.mark.parametrize("verb", ["pack", "convert", "info", "verify", "plan", "stage", "bench", "report", "show"])
@pytest.mark.parametrize("wrong", [None, 5, Path("s3://bucket/photos")])
def test_what_is_no_path_is_an_error_in_words(tmp_path, verb, wrong):
    more = {"pack": [tmp_path / "out"], "convert": [tmp_path / "out"], "report": [tmp_path / "x.html"]}
    numbers = {"nodes": 2} if verb == "plan" else {}
    with pytest.raises(UsageError, match="give"):
        list(getattr(dlio, verb)(wrong, *more.get(verb, []), **numbers))


@pytest.mark.parametrize(
    "numbers", [{"nodes": 0}, {"source_rate": 0}, {"local_rate": "fast"}, {"copies": 0}, {"epochs": -1}]
)
def test_a_cluster_that_cannot_be_is_refused(packed, numbers):
    with pytest.raises(UsageError, match=f"{next(iter(numbers))}.*: expected "):
        dlio.plan(packed, **{"nodes": 2} | numbers)


def test_a_url_is_no_place_to_stage_to_or_a_path_to_pack_to(photos, packed):
    with pytest.raises(UsageError, match="s3://bucket/x is a URL"):
        dlio.stage(packed, "s3://bucket/x")
    with pytest.raises(UsageError, match="with one slash only"):
        dlio.pack(photos, Path("s3://bucket/x"), engine="serial")
