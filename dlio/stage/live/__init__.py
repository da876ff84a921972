"""Live staging: a data set is trained on while it is being staged."""
