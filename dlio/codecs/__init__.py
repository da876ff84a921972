"""Encoded images to pixels and back: JPEG by the compiled core, plain PNG too, everything by Pillow."""
