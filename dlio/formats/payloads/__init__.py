"""The content of records of byte containers: `tf.train.Example`, MXNet's IRHeader, Caffe's Datum.

Each module returns a record in parts, so that an image's bytes are never copied into a larger message, and has
`decode(data, schema)`, which raises ValueError for other bytes.
"""

from __future__ import annotations

#: A piece of a record.
Part = bytes | bytearray | memoryview
