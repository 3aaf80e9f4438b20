"""The Kubernetes operator: makes the pods of a TrainingJob and keeps its status."""
