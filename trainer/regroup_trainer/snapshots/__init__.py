"""Memory snapshots: copies of the state in memory that outlives the ranks, and at a neighbour's."""
