"""Which Kubernetes is installed, and how. ``lab.distros.registry`` names them all."""
