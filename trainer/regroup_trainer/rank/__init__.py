"""A rank process: joins a generation, trains in it, and survives its end where it can."""
