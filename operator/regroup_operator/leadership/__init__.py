"""Which replica of the operator may act: one, by a Lease."""
