"""One module for each way to load images; the protocol is `benchmarks.loaders.tasks.Way`."""
