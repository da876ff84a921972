"""Moving bytes from the source to staged copies: reading, copying, and the pipeline of a broadcast."""
