"""The content of records of byte containers: `tf.train.Example`, MXNet's IRHeader, Caffe's Datum.

Each module has `encode(sample, schema)`, which returns the record in parts, so that an image's bytes are never copied
into a larger message, and `decode(data, schema)`, which raises ValueError for other bytes.
"""

from __future__ import annotations

#: A piece of a record.
Part = bytes | bytearray | memoryview
