"""Containers that dlio reads and does not write: shards that `dlio index` has found."""
