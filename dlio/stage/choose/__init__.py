"""Which folder and which strategy: the rates of this machine, the costs they predict, and what `dlio plan` shows."""
