"""Effects on files: reading, publishing, file systems, and folders that other users can write to."""
