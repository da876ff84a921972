"""The order of samples and each rank's share of it: pure functions of sizes, seed, epoch and topology."""
