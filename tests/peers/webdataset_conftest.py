"""What the tests of webdataset's sdist take from their `tests.conftest`, which the sdist leaves out."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest

#: The tests that are left out, with the reason.
LEFT_OUT = {
    "test_remote_file": "from the network",
    "test_missing_throws2": "from the network",
    "test_safe_urls_still_work_when_security_enabled": "from the network",
    "test_cache_dir": "from the network",
    "test_pipe": "from the network",
    "test_decoder": "of a remote set with .json; dlio's fields of bytes are .NAME.bin",
    "test_shard_syntax": "the same",
    "test_handlers": "the same",
    "test_decode_handlers": "the same",
    "test_dataloader": "the same",
    "test_dataset_rename_keep": "expects .wnid and .xml; dlio's fields of bytes are .NAME.bin",
    "test_dataset_rename_keys": "the same",
    "test_gz": "of a tar with .txt.gz, which dlio does not write",
    "test_tenbin_dec": "of a tar with .ten, which dlio does not write",
    "test_torchvision": "torchvision has no build for CPUs among the packages",
    "test_batched": "the same",
    "test_unbatched": "the same",
}
local_data = "testdata/imagenet-000000.tgz"
compressed = "testdata/compressed.tar"
remote_loc = "testdata/"
remote_shard = "shard-000000.tar"
remote_shards = "shard-{000000..000001}.tar"
remote_sample = "testdata/sample.tgz"


def count_samples_tuple(source: Iterable[Any], *checks: Callable[[Any], bool], n: int = 10000) -> int:
    """Returns the number of samples, at most `n`, all of which pass the checks."""
    count = 0
    for sample in source:
        if count == n:
            break
        assert isinstance(sample, tuple | list | dict)
        assert all(check(sample) for check in checks)
        count += 1
    return count


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves tests out; each name must be one."""
    names = {item: getattr(item, "originalname", item.name) for item in items}
    assert set(LEFT_OUT) <= set(names.values())
    items[:] = [item for item in items if names[item] not in LEFT_OUT]
