"""Where the demo plays: a devcluster, kind, or the caller's own cluster."""
