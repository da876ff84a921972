"""Which folder and which strategy: the rates of this machine, and the costs they predict."""
