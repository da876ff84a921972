"""The checks of `dlio doctor`: generators of findings, which may raise, or hang on a dead mount."""
