"""The parts of `dlio.loaders.torch`."""
