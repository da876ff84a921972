"""What loaders, `--status` and a second `dlio stage` ask the engine of their node, and how they start its agent.

    start -> agent: fill + serve <- loaders (client), other nodes' agents

start      starts one agent for a node and a copy, however many processes ask; launch: its process
resolve    the copy of a data set that a loader on this node reads
filling    a copy that an agent fills, as its loaders see it; arriving: one of its files
client     what they ask of it; status: how far the copies are
"""
