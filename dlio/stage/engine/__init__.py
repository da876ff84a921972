"""The engine: fills a copy and serves it, one process a node and copy.

complete   claims, fills, publishes and serves a copy, also one that all nodes see
foreground in a process that waits for the copy: `dlio stage`
background in a process apart from all ranks: the agent, which __main__ starts
node       its running parts, and its end
fill       brings the files, by threads; pending: which span comes next; failures: what those who wait learn
store      the files that the node keeps; writing, running_digest: how their bytes get there
fetch      where a span comes from: its home, another node, or the source
server     what loaders and other nodes ask; it passes through what the node does not keep

Which node reads what from the source: `Plan.home`, among the nodes that the meeting does not take for lost.
Who learns that it has come: this node's loaders by the bits (copies/blocks.py), `Fill.need` by `Waiters`, the process
that fills by `Fill.settled`, other nodes by the record (`Node.peer`), and all by the manifest (`Node.publish`).
"""
