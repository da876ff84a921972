"""What a packed data set is: samples and their schema, shards with their tables and readers, and the manifest."""
