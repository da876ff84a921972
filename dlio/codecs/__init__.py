"""Encoded images to pixels and back: JPEG by the compiled core, PNG by OpenCV, everything by Pillow."""
