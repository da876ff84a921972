"""Feeds data-parallel trainers from packed shards: `torch`, `tensorflow`, `keras`, and `loader`, which needs none."""
