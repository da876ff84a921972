"""SquashFS 4.0: a read-only file system in one file (Linux `fs/squashfs`, squashfs-tools-ng `doc/format.adoc`).

All integers are little-endian, and nothing is aligned or has a checksum. In this order, without gaps:

    superblock         96 bytes: counts, block size, compressor, and where each table is
    data               the blocks of all files, and fragment blocks with the ends of several files
    inode table        an inode for each file and folder
    directory table    a listing for each folder, sorted by the bytes of the names
    fragment table, export table, id table, xattr table
    zeros              up to a multiple of 4096: a loop device ignores what goes beyond a multiple of 512

Each table is a stream of records in metadata blocks (`metadata.py`). `tables.py` makes the tables of an image whose
files are stored uncompressed; `tree.py` reads those of any image; `blocks.py` reads files that are compressed or
shared.
"""

from __future__ import annotations

BLOCK_BYTES = (
    128 << 10
)  # kernels refuse blocks smaller than a page of memory, and 1 MiB costs small files 2 to 10 times
STORED = 1 << 24  # in a size word: the block is not compressed
NO_FRAGMENT = 0xFFFFFFFF
MAX_PATH_BYTES = 4096  # Linux's limit

FOLDER, FILE, SYMLINK = 1, 2, 3
LONG_FOLDER, LONG_FILE = 8, 9  # what an inode of this type holds more: see `tables.py`
