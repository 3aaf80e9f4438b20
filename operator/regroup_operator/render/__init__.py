"""The Kubernetes objects that the operator creates. Pure."""
