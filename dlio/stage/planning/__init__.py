"""Pure plans of staging: the job, the nodes of each shard, the cost model, the stripes of files."""
