"""Prefetching: reads, decoded batches and their memory."""
