"""The parts of a report's page: text that is escaped, tables, charts as SVG, images as JPEG; all inline."""
