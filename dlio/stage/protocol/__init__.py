"""How processes talk to an engine.

wire         requests and replies
connection   the client's end, and those kept for the next requests; serving: the server's
unix, tcp    connections of the loaders of a node, and of other nodes
"""
