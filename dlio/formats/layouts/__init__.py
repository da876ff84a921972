"""How the containers' files are laid out: what the formats and `dlio.pack.index` know of them in common."""
