"""The large values of many records, read by their offsets instead of record by record."""
