"""Loaders for data-parallel training: `torch`, `tensorflow`, `keras`, and the framework-free `loader`."""
