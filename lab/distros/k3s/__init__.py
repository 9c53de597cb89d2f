"""k3s: one pinned release on the node, API server and kubelet in one process."""
