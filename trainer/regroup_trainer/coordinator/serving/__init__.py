"""The coordinator's side of its connections: what comes in, and what the core wants done."""
