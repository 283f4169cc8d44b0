"""JSON Schemas of the documents that Muster reads and writes."""
