"""Command lines and Python client. Free of torch at import."""
