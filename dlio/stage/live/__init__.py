"""Live staging: an agent fills the copy of a node in the background, while loaders already read from it.

start -> agent: fill + serve <- loaders (client), other nodes' agents (peers)

start     starts one agent for a node and a copy, however many processes ask
agent     the process: claims the copy, fills it, serves it, and ends when nobody needs it
store     the files that the node keeps: unfinished ones with a bit for each block that is whole (blocks)
fill      which span comes next: what loaders wait for, then the rest in the loaders' order
owners    the node that reads a shard from the source; pure
meeting   how the agents of several nodes find each other
wire      the protocol; connection: both ends prove that they know the token

DEST/dlio/<copy>/.dlio/live/           this user's alone
    manifest.jsonl                     of the copy, as it will be
    token                              32 random bytes, known to the job's agents and loaders
    agent.json                         where the agent listens; removed when it ends
    agent.log                          what it logged
    files/<name>, files/<name>.blocks  a file that is not whole yet, and which of its blocks are
"""
