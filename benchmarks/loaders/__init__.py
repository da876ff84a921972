"""Measures dlio's loaders compared with the loaders that people use today; see `__main__`."""
