"""Claims of processes on a piece of work, their owners, and locks that survive a fork."""
