"""The clusters on which the demo runs: a devcluster, kind, or the caller's own cluster."""
