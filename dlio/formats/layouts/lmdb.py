"""The layout of an LMDB file (LMDB 0.9 `mdb.c`, data version 1; 64-bit little-endian).

It consists of pages, numbered from 0. Their size is in pages 0 and 1, the two meta pages; the meta page with the higher
transaction number counts.

    page   u64 number | u16 pad | u16 flags | u16 lower, u16 upper, or u32 number of overflow pages
    meta   page | u32 0xBEEFC0DE | u32 version | u64 address | u64 map size | db of free pages | db of records
           | u64 last page | u64 transaction
    db     u32 page size | u16 flags | u16 depth | u64 branch, leaf, overflow pages | u64 entries | u64 root
    leaf, branch   page | u16 offsets in the page of its nodes, up to byte `lower` | nodes, from byte `upper` on
    node   u16, u16 low and high half of the value's size | u16 flags | u16 key's size | key | value; in a branch the
           first three numbers are the child's page; with flag 1 the value is the u64 number of an overflow page
    overflow   page | value, which continues over the pages that follow
"""

from __future__ import annotations

import struct

PAGE = struct.Struct("<QHHHH")
OVERFLOW_PAGE = struct.Struct("<QHHI")
META = struct.Struct("<IIQQ" + 2 * "IHHQQQQQ" + "QQ")
NODE = struct.Struct("<HHHH")
MAGIC, VERSION = 0xBEEFC0DE, 1
BRANCH, LEAF, OVERFLOW, META_PAGE = 1, 2, 4, 8
BIG_VALUE = 1
INTEGER_KEYS, DUPLICATE_KEYS = 8, 4
NO_PAGE = 2**64 - 1
MAX_KEY_BYTES = 511

# What dlio writes; LMDB takes the machine's page size, and reads any.
PAGE_BYTES = 4096
ROOM = PAGE_BYTES - PAGE.size
OFFSET_BYTES = 2
MAX_NODE_BYTES = (ROOM // 2 & -2) - OFFSET_BYTES  # `me_nodemax`: with more, the value gets its own pages
