"""Measures dlio's loaders beside the loaders that people use today; see `__main__`."""
