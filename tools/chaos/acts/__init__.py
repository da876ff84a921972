"""The acts: each module has NEEDS (see tools/chaos/linux.py) and `play(scene)`, and is found by its file name."""
