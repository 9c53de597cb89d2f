"""Fresh SSH key pairs, for hosts and for the controller."""

from __future__ import annotations

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from lab.secrets import SECRETS


def make_key_pair(comment: str) -> tuple[str, str]:
    """A fresh ed25519 pair in OpenSSH form: (private key text, public key line); the private one is masked from now."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    SECRETS.add(private.decode())
    return private.decode(), f"{public.decode()} {comment}\n"
