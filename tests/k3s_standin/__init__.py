"""A stand-in for k3s in tests: what docs/k3s.md says that the lab uses of k3s, and no more.

``program`` runs on the node: one executable file that holds Kubernetes' own components, etcd and containerd, and
starts them as k3s does. ``builder`` makes such files as releases, ``mirror`` serves them over HTTP. It says of itself
that it is a stand-in, so that nothing that was measured on it counts. It proves nothing about what only a real k3s can
show.
"""
