"""Checkpoints on the volume: their layout, which of them count, writing and reading them."""
