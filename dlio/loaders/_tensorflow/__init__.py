"""The parts of `dlio.loaders.tensorflow`."""
