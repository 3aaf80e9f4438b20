"""Checkpoints: where they lie, which of them count, how they are written and read."""
