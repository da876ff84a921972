"""Which process works on what: claims on a piece of work, their owners, and locks that survive a fork."""
