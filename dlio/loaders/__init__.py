"""Loaders for data-parallel training: `torch`, `tensorflow`, `keras`, `jax`, and the framework-free `loader`."""
