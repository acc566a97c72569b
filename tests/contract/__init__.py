"""The API against its own document: schemathesis asks the real application all that the document lets it ask."""
