"""The suites of `dlio.testing` say which sample and field is wrong."""

from __future__ import annotations

import numpy as np
import pytest

from dlio.dataset.schema import Sample
from dlio.testing.samples import check_same

RIGHT = {"image": b"\xff\xd8" * 300, "label": 3, "box": np.array([1, 2], "int32")}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"label": 4}, "the field 'label' is 4, expected 3"),
        ({"label": 3.0}, "the field 'label' is of type float, expected int"),
        ({"image": b""}, r"the field 'image' is b'', expected b'.*\.\.\. \(2,403 characters\)"),
        ({"box": np.array([1, 3], "int32")}, "the field 'box' holds other numbers"),
        ({"box": np.array([[1, 2]], "int32")}, r"the field 'box' is int32\[1, 2\], expected int32\[2\]"),
        ({"more": 1}, r"the fields are \['box', 'image', 'label', 'more'\], expected \['box', 'image', 'label'\]"),
    ],
)
def test_a_wrong_sample_is_named_by_key_and_field(wrong, said):
    right = [Sample("a/1", RIGHT), Sample("a/2", RIGHT)]
    check_same(right, right)
    with pytest.raises(AssertionError, match=rf"^sample 1, key 'a/2': {said}"):
        check_same([right[0], Sample("a/2", RIGHT | wrong)], right)
