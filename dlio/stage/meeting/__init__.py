"""How the nodes of a job find each other, and which of them are present.

meeting   this node's part: asks the others
peer      what a node tells of itself, and what this one knows of each other
listing   one list of a folder for all of them, before they have a copy to meet for
folder    where it learns how they are reached; gathering: in a folder that all nodes see, or by MPI
"""
