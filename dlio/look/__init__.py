"""Inspects data sets and machines: reports, images in the terminal, findings on this machine, measurements."""
