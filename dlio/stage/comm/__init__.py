"""How the processes of a job talk while they stage: by MPI, or by torch's store and gloo."""
