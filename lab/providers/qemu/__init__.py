"""Throw-away guests on this machine, under QEMU."""
