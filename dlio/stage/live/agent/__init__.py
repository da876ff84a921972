"""The process that fills a copy in the background: one a node and copy, apart from all ranks.

__main__   the process: claims the copy, fills it, serves it, and ends when nobody needs it
node       its parts at work, and its end
fill       which span comes next: a span that a reader waits for, then the rest in the loaders' order
store      the files that the node keeps
peers      where a span comes from: its owner, another node, or the source
meeting    how the agents of a job find each other; meeting_folder: where
server     what loaders and other nodes ask; relay: ranges of files that the node does not keep
"""
