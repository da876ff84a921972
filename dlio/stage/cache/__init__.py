"""Staged copies on a node: where they lie, who uses, owns and may remove them, and how they are repaired."""
