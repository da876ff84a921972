"""One shard that all workers write: which samples go to which place of its file, and the file made whole."""
