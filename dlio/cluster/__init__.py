"""Where this process runs: its rank, node and launcher, and the CPU cores that it may use."""
