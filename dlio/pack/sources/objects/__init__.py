"""Sources of images with boxes or masks: modules as those of `dlio.pack.sources`."""
