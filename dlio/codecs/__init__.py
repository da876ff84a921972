"""Encoded images to pixels and back: JPEG by the compiled core, PNG by the core, everything by Pillow."""
