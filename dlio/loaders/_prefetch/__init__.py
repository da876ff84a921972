"""Work ahead of need: reads, decoded batches and their memory."""
