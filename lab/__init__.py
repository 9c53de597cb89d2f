"""node lab: measures what a real kubelet does to real pods."""

__version__ = "0.1.0"
