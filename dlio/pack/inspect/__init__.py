"""Inspects packed data sets and encoded images: headers, summaries, verification."""
