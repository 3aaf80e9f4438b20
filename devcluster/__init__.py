"""A real multi-node Kubernetes on one machine, without Docker: for the demo, the end-to-end tests and the curious.

Every node is a network namespace with a containerd, a kubelet and a kube-proxy of its own; the control plane is
another. Nothing here is part of the product, and nothing of the product imports it.
"""
