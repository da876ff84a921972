"""Pure plans of staging: the nodes of each shard, the cost model, the stripes of files."""
