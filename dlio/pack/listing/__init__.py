"""Parts that sources are made of: lists of samples, keys, labels, image files and folders, archive members."""
