"""Data sets from Python code: `dlio.Writer` takes samples one by one, `dlio.pack_items` calls a function for each item.

Both write the shards, the partial manifest and the digests of `dlio.pack`.
"""
