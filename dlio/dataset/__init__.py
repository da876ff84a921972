"""A packed data set: samples and their schema, shards with their tables and readers, and the manifest."""
