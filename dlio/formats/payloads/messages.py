"""Message classes of `tf.train.Example`, Caffe's `Datum` and ArrayRecord, built by protobuf from their definitions.

They live in their own pool, so that TensorFlow's and Caffe's classes of the same names can be loaded next to them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

from dlio.errors import needs_package

# Field name, number, type ("TYPE_" omitted) or message name, and whether it is repeated.
# tensorflow `core/example/{example,feature}.proto`; the map's entries are spelled out as messages.
_EXAMPLE = {
    "BytesList": [("value", 1, "BYTES", True)],
    "FloatList": [("value", 1, "FLOAT", True)],
    "Int64List": [("value", 1, "INT64", True)],
    "Feature": [
        ("bytes_list", 1, "BytesList", False),
        ("float_list", 2, "FloatList", False),
        ("int64_list", 3, "Int64List", False),
    ],
    "Entry": [("key", 1, "STRING", False), ("value", 2, "Feature", False)],
    "Features": [("feature", 1, "Entry", True)],
    "Example": [("features", 1, "Features", False)],
}
# The same, but packed lists of numbers are the bytes that they have in the message.
_PACKED_EXAMPLE = _EXAMPLE | {name: [("value", 1, "BYTES", True)] for name in ("FloatList", "Int64List")}
# caffe `src/caffe/proto/caffe.proto`
_DATUM = {
    "Datum": [
        ("channels", 1, "INT32", False),
        ("height", 2, "INT32", False),
        ("width", 3, "INT32", False),
        ("data", 4, "BYTES", False),
        ("label", 5, "INT32", False),
        ("float_data", 6, "FLOAT", True),
        ("encoded", 7, "BOOL", False),
    ],
}
# array_record `cpp/layout.proto`; what each chunk has is read by itself
_ARRAY_RECORD = {
    "RiegeliPostscript": [("footer_offset", 1, "UINT64", False), ("magic", 2, "UINT64", False)],
    "ArrayRecordMetadata": [
        ("version", 1, "UINT32", False),
        ("num_chunks", 2, "UINT64", False),
        ("num_records", 3, "UINT64", False),
    ],
    "RiegeliFooterMetadata": [("array_record_metadata", 1, "ArrayRecordMetadata", False)],
}
_MESSAGES = dict.fromkeys(_EXAMPLE, _EXAMPLE) | {"PackedExample": _PACKED_EXAMPLE, "Datum": _DATUM}
_MESSAGES |= dict.fromkeys(_ARRAY_RECORD, _ARRAY_RECORD)


def parse(name: str, data: bytes | memoryview) -> Any:
    """Returns the message that `data` holds; `name` as of `message`.

    Raises:
        ValueError: it holds none.
        MissingPackageError: protobuf is not installed.
    """
    kind = message(name)
    from google.protobuf.message import DecodeError

    try:
        return kind.FromString(bytes(data))
    except (DecodeError, UnicodeDecodeError) as error:
        raise ValueError(str(error)) from error


@cache
def message(name: str) -> type[Any]:
    """Returns the class of a message that is defined here; or of `PackedExample`.

    A PackedExample is an Example whose lists of numbers, if they are packed, are left to the caller: protobuf makes a
    Python object of each number.

    Raises:
        MissingPackageError: protobuf is not installed.
    """
    with needs_package("protobuf", "tfrecord", "reading Example or Datum records"):
        from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
    file = descriptor_pb2.FileDescriptorProto(name=f"dlio/{name}.proto", package="dlio", syntax="proto2")
    for message_name, fields in _MESSAGES[name].items():
        definition = file.message_type.add(name=message_name)
        for field_name, number, kind, repeated in fields:
            field = definition.field.add(name=field_name, number=number)
            field.label = field.LABEL_REPEATED if repeated else field.LABEL_OPTIONAL
            if hasattr(field, f"TYPE_{kind}"):
                field.type = getattr(field, f"TYPE_{kind}")
            else:
                field.type, field.type_name = field.TYPE_MESSAGE, f".dlio.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(f"dlio.{name.removeprefix('Packed')}"))
