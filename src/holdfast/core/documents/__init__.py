"""The rules of documents that declare certificates."""
