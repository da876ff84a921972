"""Containers that dlio reads and does not write; a manifest names one by its module's dotted path."""
