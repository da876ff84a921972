"""Which samples a rank gets, and in which order: pure functions of sizes, seed, epoch and topology."""
