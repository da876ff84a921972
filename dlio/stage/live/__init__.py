"""Live staging: an agent fills the copy of a node in the background, while loaders already read from it.

    start -> agent: fill + serve <- loaders (client), other nodes' agents

    start       starts one agent for a node and a copy, however many processes ask; launch: its process
    agent/      its process
    client      what loaders ask of it
    status      how far it is
    unix, tcp   how the loaders of a node connect to its agent, and how other nodes do
    wire        the protocol on a connection; pool: of connections
    folder      the files by which the agent and the loaders of a node exchange their state
    blocks      which blocks of an unfinished file are there

Which node reads a shard from the source, and what each keeps, is planned in dlio/stage/planning (owners.py, live.py).

    DEST/dlio/<copy>/.dlio/live/           this user's alone
        manifest.jsonl                     of the copy, as it will be
        agent.json                         the agent's process; removed when it ends
        socket                             where it listens to the loaders of this node
        agent.log                          what it logged
        files/<name>, files/<name>.blocks  a file that is not whole yet, and which of its blocks are
"""
