"""One shard that all workers write: which samples go to which place of its file, and the completion of the file."""
