"""The training side: coordinator, agents and rank processes; knows nothing of Kubernetes."""
