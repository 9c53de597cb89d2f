"""Upstream Kubernetes: the control plane on the controller, kubelet and containerd on the node."""
