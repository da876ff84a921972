"""How the nodes of a job find each other, and which of them are present.

meeting      this node's part
folder       by a folder that all nodes see
introduced   by each other's addresses, which MPI has told them (mpi)
"""
