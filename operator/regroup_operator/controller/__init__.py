"""Events in, requests out: the only room of the operator that does I/O."""
