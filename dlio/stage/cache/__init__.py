"""Staged copies on a node: their folders, users, owners, removal and repair."""
