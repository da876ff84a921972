"""Who may read a file, and what root does with the rights of the user who owns it.

access     who may read a copy of a file: never more users than may read the file itself
as_owner   work in a child process that becomes the owner, and is killed when its time is over (patience)
"""
