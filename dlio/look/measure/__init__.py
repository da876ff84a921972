"""Measurements of `dlio bench`, each of a few seconds: storage, decoding, loading."""
