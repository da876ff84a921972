"""File layouts of the containers, shared by the formats and `dlio.pack.index`."""
