"""Riegeli's records in chunks (riegeli `doc/riegeli_records_file_format.md`), and ArrayRecord's index of the chunks.

All integers are little-endian; each hash is a HighwayHash of 64 bits by `HASH_KEY`.

    block header   24 bytes, wherever a multiple of 65536 begins, also within a chunk or its header:
                   u64 hash of the rest, u64 bytes since the chunk's begin, u64 bytes to its end
    chunk header   40 bytes: u64 hash of the rest, u64 bytes of data, u64 their hash, u8 kind, u56 records,
                   u64 bytes of all records
    simple chunk   u8 compression, varint bytes of the packed sizes, packed sizes, packed records
    packed         the bytes; or, if they are compressed, varint bytes that they are, and the compressed ones

    kind           s signature   m metadata   p padding   r simple   t transposed
    compression    0 none   z zstd   b brotli   s snappy, without frames

A chunk that begins where a block does has its header after the block's. A file begins with a signature. `chunks.py`
reads the records of one, `index.py` where ArrayRecord's are. Transposed chunks are not documented,
and not read.
"""

from __future__ import annotations

BLOCK_BYTES = 1 << 16
HEADER_BYTES = 24  # of a block
HASH_KEY = (0x2F696C6567656952, 0x0A7364726F636572) * 2
