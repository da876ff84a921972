"""For pytest in a process with grain: the tests of its TFRecord source read a file that dlio has written.

A record of dlio is a `tf.train.Example`; the source under test gives it to TensorFlow's parser, and hands on the value.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from absl import flags
from grain._src.python.dataset.sources.tfrecord_dataset import TFRecordIterDataset
from tensorflow.train import Example


def value(record: bytes) -> bytes:
    """Returns the only value of an Example."""
    found: bytes = Example.FromString(record).features.feature["text"].bytes_list.value[0]
    return found


def source(path: str) -> Any:
    """Returns grain's source, whose records are parsed."""
    return TFRecordIterDataset(path).map(value)


def pytest_addoption(parser: pytest.Parser) -> None:
    """Adds the folder that holds `testdata`."""
    parser.addoption("--source", required=True)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Replaces the source."""
    flags.FLAGS.mark_as_parsed()
    items[0].module.tfrecord_dataset = SimpleNamespace(TFRecordIterDataset=source)  # type: ignore[attr-defined]


@pytest.hookimpl(trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Replaces the folder, after the module has chosen its own."""
    flags.FLAGS["test_srcdir"].parse(item.config.getoption("--source"))
