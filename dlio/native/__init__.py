"""The compiled JPEG core."""
