"""How processes talk to an engine.

wire         requests and replies
connection   one end of a conversation, and those kept for the next requests
unix, tcp    connections of the loaders of a node, and of other nodes
"""
