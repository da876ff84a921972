"""The job that this process belongs to: its rank, node, launcher and CPU cores, and the liveness of its peers."""
