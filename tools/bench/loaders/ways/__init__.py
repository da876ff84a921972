"""One module for each way to load images; the protocol is `tools.bench.loaders.tasks.Way`."""
