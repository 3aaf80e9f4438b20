"""What `kubectl trainingjob` asks of a cluster, and how it shows the answers."""
