"""Pure plans of staging: which node holds which shard, what each strategy costs, how files are striped."""
