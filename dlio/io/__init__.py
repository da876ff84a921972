"""Effects on files: reading, publishing, what a path lies on, and folders that other users can write to."""
