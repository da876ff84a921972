"""The engine: fills a copy and serves it, one process a node and copy.

complete   in a process that waits for the copy: `dlio stage`; together: what it shows, and when it leaves the others
__main__   in a process of its own, apart from all ranks: the agent
node       its running parts, and its end
fill       which span comes next: a span that a reader waits for, then the rest in the loaders' order
store      the files that the node keeps; writing, running_digest: how their bytes get there
fetch      where a span comes from: its owner, another node, or the source
server     what loaders and other nodes ask; relay: ranges of files that the node does not keep
"""
