"""Memory snapshots: copies of the state in the memory of agents, which outlives the ranks."""
