"""A real multi-node Kubernetes on one machine, without Docker, for the demo and the end-to-end
tests.

A node is a network namespace with its own containerd, kubelet and kube-proxy. The control plane has
a namespace of its own. devcluster is not part of the product, and the product does not import it.
"""
