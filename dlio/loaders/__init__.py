"""Feeds data-parallel trainers from packed shards: `dlio.loaders.torch`, `dlio.loaders.tensorflow`."""
