"""What the records of byte containers hold: `tf.train.Example`, MXNet's IRHeader, Caffe's Datum.

Each module has `encode(sample, schema)`, which returns the record in parts, so that an image's bytes are never copied
into a larger message, and `decode(data, schema)`, which raises ValueError for bytes that are not such record.
"""

from __future__ import annotations

#: A piece of a record, which is written as it is.
Part = bytes | bytearray | memoryview
