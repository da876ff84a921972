"""How the containers' files are laid out: what the formats and `dlio.pack.adopt` know of them in common."""
