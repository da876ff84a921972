"""Encoded images to pixels and back: JPEG by the compiled core, PNG by the core or OpenCV, everything by Pillow."""
