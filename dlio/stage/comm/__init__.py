"""How the processes of a job communicate while they stage: over MPI, or over torch's store and gloo."""
