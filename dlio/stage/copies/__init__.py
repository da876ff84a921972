"""Staged copies on a node: their folders, users, leases, and unfinished files.

DEST/dlio/<copy>/                      complete once it holds manifest.jsonl
DEST/dlio/<copy>/.dlio/live/           while it is filled; this user's alone
    manifest.jsonl                     of the copy, as it will be
    agent.json                         the agent's process; removed when it ends
    socket                             where it listens to the loaders of this node
    agent.log                          what it logged
    files/<name>, files/.dlio/<name>   a file that is not whole yet, and which of its blocks are
"""
