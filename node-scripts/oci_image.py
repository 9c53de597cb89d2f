"""Make the test pods' container image from this node's static busybox and import it: no registry is needed.

Prints the digest of the image's manifest, which depends on nothing but the busybox binary.
"""

from __future__ import annotations

import hashlib
import io
import json
import subprocess
import sys
import tarfile

from labnode import emit

NAME = "lab.local/busybox:1"
APPLETS = ("sh", "sleep", "dd", "cat")


def layer(busybox: bytes) -> bytes:
    """Root file system: busybox, links for the applets, empty folders that the runtime mounts on."""
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name in ("bin", "dev", "etc", "proc", "sys", "tmp"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(folder)
        binary = tarfile.TarInfo("bin/busybox")
        binary.size, binary.mode = len(busybox), 0o755
        tar.addfile(binary, io.BytesIO(busybox))
        for applet in APPLETS:
            link = tarfile.TarInfo(f"bin/{applet}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            tar.addfile(link)
    return out.getvalue()


def archive(busybox: bytes) -> tuple[bytes, str]:
    """The OCI layout as a tar, and the digest of the image's manifest."""
    blobs: dict[str, bytes] = {}

    def store(content: bytes) -> dict[str, object]:
        digest = hashlib.sha256(content).hexdigest()
        blobs[digest] = content
        return {"digest": f"sha256:{digest}", "size": len(content)}

    def dump(value: object) -> bytes:
        return json.dumps(value, sort_keys=True).encode()

    root = {"mediaType": "application/vnd.oci.image.layer.v1.tar", **store(layer(busybox))}
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/bin"], "Entrypoint": ["/bin/sleep", "100000000"]},
        "rootfs": {"type": "layers", "diff_ids": [root["digest"]]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": {"mediaType": "application/vnd.oci.image.config.v1+json", **store(dump(config))},
        "layers": [root],
    }
    entry = {
        "mediaType": manifest["mediaType"],
        **store(dump(manifest)),
        "annotations": {"io.containerd.image.name": NAME, "org.opencontainers.image.ref.name": "1"},
    }
    files = {
        "oci-layout": dump({"imageLayoutVersion": "1.0.0"}),
        "index.json": dump({"schemaVersion": 2, "manifests": [entry]}),
        **{f"blobs/sha256/{digest}": content for digest, content in blobs.items()},
    }
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as tar:
        for name, content in files.items():
            item = tarfile.TarInfo(name)
            item.size = len(content)
            tar.addfile(item, io.BytesIO(content))
    return out.getvalue(), str(entry["digest"])


def main() -> int:
    """Build and import."""
    emit("start", program="oci-image", version=1)
    with open("/bin/busybox", "rb") as file:
        content, digest = archive(file.read())
    argv = ["ctr", "-n", "k8s.io", "images", "import", "-"]
    done = subprocess.run(argv, input=content, capture_output=True, timeout=120)
    emit("end", ok=done.returncode == 0, digest=digest, message=(done.stdout + done.stderr).decode()[-500:])
    return done.returncode


if __name__ == "__main__":
    sys.exit(main())
