"""A laboratory of network namespaces (being written)."""
PORT = 23450
