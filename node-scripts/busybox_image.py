"""Make the test pods' image from a busybox that the lab brought, and import it into the lab's own containerd.

Arguments: the busybox file, the ctr program, the socket of containerd. The image itself is that of oci_image.py.
"""

from __future__ import annotations

import subprocess
import sys

from labnode import emit
from oci_image import archive


def main() -> int:
    """Build and import; the exit status of ctr."""
    busybox, ctr, socket = sys.argv[1:]
    emit("start", program="busybox-image", version=1)
    with open(busybox, "rb") as file:
        content, digest = archive(file.read())
    argv = [ctr, "--address", socket, "-n", "k8s.io", "images", "import", "-"]
    done = subprocess.run(argv, input=content, capture_output=True, timeout=120)
    emit("end", ok=done.returncode == 0, digest=digest, message=(done.stdout + done.stderr).decode()[-500:])
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
