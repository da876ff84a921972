"""Reading a data set from a folder, a URL, or files that lie apart."""
